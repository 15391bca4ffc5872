"""`apportion account`: prices of files, and the check of a run's ε."""

import json
import sqlite3

import pytest
import typer

import runs
from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.cli import main
from apportion.cli.account_command import account
from apportion.event import Event
from apportion.training.statement import show_epsilon

PRICE = PrivacyLossAccountant().epsilon({Event(0.01, 4.0): 10_000}, 1e-5)


@pytest.fixture
def run_account(capsys, monkeypatch, tmp_path):
    """Run the command in an empty folder; returns exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(account)
    monkeypatch.setattr(main, "app", app)  # its errors are printed as those of all commands

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main.main(list(arguments))
        printed = capsys.readouterr()
        return stop.value.code or 0, printed.out, printed.err

    return run


@pytest.fixture
def schedule(tmp_path):
    path = tmp_path / "schedule.csv"
    path.write_text("sample_rate,noise_multiplier,count\n0.01,4,10000\n")
    return str(path)


@pytest.fixture
def saved_run(tmp_path, records, model, budget):
    import torch

    def train(**settings):
        settings = {"sample_rate": 0.3, "steps": 4, "lr": 0.1, "population": 40} | settings
        run = runs.train(model, torch.nn.functional.cross_entropy, records, budget=budget, **settings)
        return run.save(tmp_path / "run")

    return train


def test_a_schedule(run_account, schedule):
    code, out, _ = run_account(schedule, "--delta", "1e-5")
    assert code == 0
    assert f"ε = {show_epsilon(PRICE)} for one record" in out
    assert "10,000 steps" in out


def test_a_schedule_for_scripts(run_account, schedule):
    code, out, _ = run_account(schedule, "--delta", "1e-5", "--group", "2", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["epsilon"] > 1.9 * PRICE
    assert found["group"] == 2


def test_all_accountants(run_account, schedule):
    code, out, _ = run_account(schedule, "--delta", "1e-5", "--all")
    assert code == 0
    assert "1.0355" in out
    (limit,) = [line for line in out.splitlines() if "central limit" in line]
    assert limit.count("not an upper bound") == 2
    found = json.loads(run_account(schedule, "--delta", "1e-5", "--all", "--json")[1])
    assert found["accountants"][0]["epsilon"] == found["epsilon"] == PRICE
    assert {row["standing"] for row in found["accountants"]} >= {"upper bound", "not an upper bound"}


def test_the_figure_needs_no_network(run_account, tmp_path):
    (tmp_path / "history.json").write_text(json.dumps([[1.1, 0.02, 500]]))
    code, out, _ = run_account("history.json", "--delta", "1e-5", "--figure", "plans.html")
    page = (tmp_path / "plans.html").read_text(encoding="utf-8")
    assert code == 0
    assert "plans.html" in out
    assert "not an upper bound" in page
    assert len(page) > 1_000_000, "plotly is not in the page"
    assert "<script src=" not in page


def test_a_run_agrees_with_dp_accounting(run_account, saved_run):
    folder = saved_run()
    code, out, err = run_account(str(folder))
    assert code == 0, err
    assert "agree within 0.5 %" in out
    found = json.loads(run_account(str(folder), "--all", "--json")[1])
    assert found["agrees"]
    assert found["stated"] == found["recomputed"]
    assert found["dp_accounting"]["lowest"] == pytest.approx(found["stated"], rel=5e-3)
    assert len(found["accountants"]) > 5
    other = json.loads(run_account(str(folder), "--delta", "1e-7", "--json")[1])
    assert other["agrees"]
    assert other["stated"] is None
    assert other["recomputed"] > found["recomputed"]


def test_a_seeded_run_is_called_not_private(run_account, saved_run):
    code, out, _ = run_account(str(saved_run(seed=1)))
    assert code == 0
    assert "NOT private" in out


@pytest.mark.slow
def test_many_multipliers_are_compared_with_a_range(run_account, monkeypatch, tmp_path):
    events = {Event(0.3, 4.0 + 0.01 * t): 1 for t in range(42)}
    epsilon = PrivacyLossAccountant().epsilon(events, 1e-5)
    facts = {"epsilon": epsilon, "epsilon_spent": epsilon, "delta": 1e-5, "private": True}
    monkeypatch.setattr("apportion.cli.account_command._read_run", lambda folder: (facts, events))
    code, out, err = run_account(str(tmp_path))
    assert code == 0, err
    assert "rounded to 40, up and down" in out
    assert "agree within 0.5 %" in out


def test_a_lower_statement_is_found_out(run_account, saved_run):
    folder = saved_run()
    statement = folder / "public" / "privacy.json"
    facts = json.loads(statement.read_text())
    statement.write_text(json.dumps(facts | {"epsilon_spent": 0.9 * facts["epsilon_spent"]}))
    code, out, err = run_account(str(folder), "--json")
    assert code == 1
    assert "10.0% below dp_accounting" in err
    assert json.loads(out)["agrees"] is False
    statement.write_text(json.dumps(facts | {"epsilon": 0.9 * facts["epsilon"]}))
    code, _, err = run_account(str(folder))
    assert code == 1
    assert "guarantee" in err
    statement.write_text(json.dumps(facts | {"epsilon_spent": 1.1 * facts["epsilon_spent"]}))
    assert "above" in run_account(str(folder))[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["schedule.csv"], "delta=None"),
        (["schedule.csv", "--delta", "0"], "delta=0.0"),
        (["schedule.csv", "--delta", "1e-5", "--group", "0"], "group=0"),
        (["schedule.csv", "--delta", "1e-5", "--group", "2", "--all"], "group=2"),
        (["nothing.csv", "--delta", "1e-5"], "nothing.csv"),
        (["rates.csv", "--delta", "1e-5", "--figure", "f.html"], "one sampling rate"),
        (["schedule.csv", "--delta", "1e-5", "--figure", "/proc/none/f.html"], "cannot be written"),
        (["."], "holds no public/privacy.json"),
        (["broken"], "it is not a statement"),
        (["lacking"], "it lacks"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run_account, schedule, tmp_path, arguments, words):
    (tmp_path / "rates.csv").write_text("sample_rate,noise_multiplier\n0.01,4\n0.02,4\n")
    for folder, text in (("broken", "{"), ("lacking", "{}")):
        for part in ("public", "secret"):
            (tmp_path / folder / part).mkdir(parents=True)
        (tmp_path / folder / "public" / "privacy.json").write_text(text)
        sqlite3.connect(tmp_path / folder / "secret" / "ledger.sqlite").close()
        (tmp_path / folder / "secret" / "ledger.sqlite").touch()
    code, _, err = run_account(*arguments)
    assert code == 2
    assert err.startswith("error: ")
    assert len(err.strip().splitlines()) == 1
    assert words in err
