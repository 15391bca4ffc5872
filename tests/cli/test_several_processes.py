"""What the processes that torchrun starts print: the first one tells, and others only of a rank that was lost."""

import pytest

from apportion.cli import main as module
from apportion.errors import BudgetExhausted, RankLost


@pytest.fixture
def rank(monkeypatch):
    monkeypatch.setattr(module.signal, "signal", lambda *_: None)

    def become(number):
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", str(number))

    return become


def ended(capsys, arguments, commands=None):
    with pytest.raises(SystemExit) as end:
        module.main(arguments, commands)
    told = capsys.readouterr()
    return end.value.code, told.out, told.err


def raising(error):
    def commands(**_):
        print("a table")
        raise error

    return commands


@pytest.mark.parametrize("number", [0, 1])
def test_a_refusal_is_told_once(rank, capsys, number):
    rank(number)
    code, out, err = ended(capsys, ["train"], raising(BudgetExhausted("nothing is left")))
    assert code == 2
    assert (out, err) == (("a table\n", "error: nothing is left\n") if number == 0 else ("", ""))


@pytest.mark.parametrize("number", [0, 1])
def test_a_lost_rank_is_told_by_everybody_who_is_left(rank, capsys, number):
    rank(number)
    code, _, err = ended(capsys, ["train"], raising(RankLost("rank 0 ended")))
    assert code == 4
    assert err == f"error{' (rank 1)' * number}: rank 0 ended\n"


def test_other_commands_are_for_one_process(rank, capsys):
    rank(0)
    code, _, err = ended(capsys, ["compare", "demo"])
    assert code == 2
    assert "torchrun" in err
