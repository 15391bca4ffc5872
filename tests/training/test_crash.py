"""SIGKILL at chosen and at random points, in both modes of recovery: the ledger never shows fewer draws than were handed out."""

import json
import multiprocessing
import os
import random
import signal
import time

import pytest
from crash_child import POINTS, life

from apportion.accounting.ledger import Ledger
from apportion.training.checkpoint import read_checkpoint
from suites import thinned

STEPS, SPARE = 12, 30
EVERY = 3  # steps between checkpoints; with more spare ones, steps are charged in advance
processes = multiprocessing.get_context("forkserver")
# torch._dynamo is what the first proof of a process would import, for a second in each of a hundred lives
processes.set_forkserver_preload(["apportion.training.train", "torch", "torch._dynamo", "crash_child"])


def live(folder, mode, resume, point=None, countdown=1, kill_after=None, spare=SPARE):
    """One process. Returns whether it was killed."""
    child = processes.Process(target=life, args=(folder, mode, resume, point, countdown, STEPS, spare))
    child.start()
    if kill_after is not None:
        time.sleep(kill_after)
        if child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
    child.join(60)
    assert child.exitcode in (0, -signal.SIGKILL), child.exitcode
    return child.exitcode != 0


def handed_out(folder):
    path = folder / "handed-out"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def charges(folder):
    ledger = Ledger.open(folder / "secret" / "ledger.sqlite")
    try:
        assert ledger.verify() is None
        return list(ledger.charges())
    finally:
        ledger.close()


def check_books(folder, mode):
    values = [line["value"] for line in handed_out(folder)]
    paid = charges(folder)
    assert len(paid) >= len(set(values))
    assert len({token for token, _ in paid}) == len(paid)
    if mode == "fresh":
        assert len(set(values)) == len(values), "noise was used twice"
    else:  # the same step, the same value
        by_number = {}
        for line in handed_out(folder):
            assert by_number.setdefault(line["number"], line["value"]) == line["value"]


def many_crashes(folder, mode, crashes, seed):
    chance = random.Random(seed)
    folder.mkdir()
    resume = False
    killed = 0
    while killed < crashes:
        if chance.random() < 0.75:
            died = live(folder, mode, resume, chance.choice(POINTS), chance.randint(1, 5))
        else:
            died = live(folder, mode, resume, kill_after=chance.uniform(0.05, 0.6))
        if (folder / "secret" / "checkpoint").exists():
            check_books(folder, mode)
            resume = True
        elif (folder / "secret" / "ledger.sqlite").exists():
            assert charges(folder) == []
            (folder / "secret" / "ledger.sqlite").unlink()
        killed += died
        if not died and killed < crashes:  # it ended: begin another run
            folder = folder.with_name(f"{folder.name}+")
            folder.mkdir()
            resume = False
    if (folder / "secret" / "checkpoint").exists():
        assert not live(folder, mode, True)
        check_books(folder, mode)
        assert read_checkpoint(folder / "secret" / "checkpoint")["step"] == STEPS
        assert not (folder / "secret" / "key").exists()


@pytest.mark.parametrize("mode", ["fresh", "exact"])
def test_two_crashes(tmp_path, mode):
    many_crashes(tmp_path / "run", mode, 2, seed=mode)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mode", ["fresh", "exact"])
def test_a_hundred_crashes_in_each_mode(tmp_path, mode, seed):
    many_crashes(tmp_path / "run", mode, 20, seed)


def test_what_a_crash_costs_if_steps_were_charged_in_advance(tmp_path):
    """Died in step 5 of blocks of four; the checkpoint is that of step 3. Steps 6 to 8 were paid for and are lost."""
    folder = tmp_path / "run"
    folder.mkdir()
    assert live(folder, "fresh", False, "handed out", 5, spare=EVERY + 4)
    before = handed_out(folder)
    assert len(before) == 5
    assert [token for token, _ in charges(folder)] == list(range(1, 9))
    assert not live(folder, "fresh", True, spare=EVERY + 4)
    after = handed_out(folder)[5:]
    assert [line["number"] for line in after] == list(range(4, 13))
    assert [token for token, _ in charges(folder)] == [*range(1, 9), *range(13, 18), *range(9, 13)]
    assert not {line["value"] for line in before} & {line["value"] for line in after}


WITHIN_A_STEP = [(point, mode) for point in ("charged", "noised", "handed out") for mode in ("fresh", "exact")]
CORE = (("charged", "exact"), ("noised", "fresh"), ("handed out", "fresh"), ("handed out", "exact"))
"""Before the hand-out both points cost the same."""


@pytest.mark.parametrize(("point", "mode"), thinned(WITHIN_A_STEP, lambda *case: case in CORE))
def test_what_a_crash_between_charge_and_hand_out_costs(tmp_path, mode, point):
    """Died in step 5, before or after its value was seen; the checkpoint is that of step 3."""
    folder = tmp_path / "run"
    folder.mkdir()
    calls = 5 if point == "handed out" else 4 * 4 + 1  # four parameters a step
    assert live(folder, mode, False, point, calls, spare=EVERY)
    before = handed_out(folder)
    assert len(before) == (5 if point == "handed out" else 4)
    assert [token for token, _ in charges(folder)] == [1, 2, 3, 4, 5]
    assert not live(folder, mode, True, spare=EVERY)
    after = handed_out(folder)[len(before) :]
    assert [line["number"] for line in after] == list(range(4, 13))
    paid = [token for token, _ in charges(folder)]
    if mode == "fresh":  # steps 4 and 5 again, with spare tokens and other noise
        assert paid == [*range(1, 6), STEPS + 1, STEPS + 2, *range(6, STEPS + 1)]
        assert not {line["value"] for line in before} & {line["value"] for line in after}
    else:
        assert after[0] == before[3]
        if point == "handed out":
            assert paid == list(range(1, STEPS + 1))
            assert after[1] == before[4]
        else:  # the draw in flight is burnt
            assert paid == [*range(1, 6), STEPS + 1, *range(6, STEPS + 1)]
