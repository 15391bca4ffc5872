import csv
import io
import json
import sqlite3

import pytest
from typer.testing import CliRunner

from apportion import Budget, InvalidArgument, Record
from apportion.accounting.account import Account
from apportion.accounting.ledger import Ledger
from apportion.accounting.rules import FixedPlan
from apportion.cli.ledger_command import app
from apportion.event import Event

TOKEN = Event(1.0, 4.0)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "patients.sqlite"
    options = ("--name", "patients", "--epsilon", 3, "--delta", 1e-5, "--unit", "record")
    result = run("limit", file, *options)
    assert result.exit_code == 0, result.output
    assert "ε = 3 at δ = 1e-05" in result.output
    ledger = Ledger.attach(file)
    budget = Budget(epsilon=3.0, delta=1e-6, unit=Record())
    spending = Account(budget, FixedPlan([TOKEN] * 3), ledger)
    spending.charge(TOKEN)
    spending.charge(TOKEN)
    ledger.close()
    return file


def test_a_limit_may_protect_users(tmp_path):
    file = tmp_path / "patients.sqlite"
    result = run("limit", file, "--name", "patients", "--epsilon", 3, "--delta", 1e-5, "--unit", "user")
    assert result.exit_code == 0, result.output
    assert json.loads(run("show", file, "--json").stdout)["unit"] == "user"
    ledger = Ledger.attach(file)
    with pytest.raises(InvalidArgument, match="same unit"):
        Account(Budget(epsilon=3.0, delta=1e-6, unit=Record()), FixedPlan([TOKEN]), ledger)


def damage(path):
    connection = sqlite3.connect(path)
    connection.executescript("DROP TRIGGER no_update; UPDATE entries SET written = 'x' WHERE number = 3;")
    connection.executescript(
        "CREATE TRIGGER no_update BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
    )
    connection.close()


def test_show(path):
    result = run("show", path)
    assert result.exit_code == 0
    for words in (
        "patients: limit ε = 3 at δ = 1e-05 (record)",
        "steps planned: ",
        "steps charged: ",
        "cost: ",
        "0.1875",
    ):
        assert words in result.stdout
    facts = json.loads(run("show", path, "--json").stdout)
    assert f"ε = {facts['epsilon_admitted']:.4g} is taken" in result.stdout
    assert f"room for {facts['room']}" in result.stdout
    assert [(one["run"], one["planned"], one["charged"]) for one in facts["runs"]] == [(1, 3, 2)]
    assert 0 < facts["epsilon_admitted"] < 3
    assert facts["damage"] is None


def test_a_limit_is_declared_once_and_every_part_of_it_is_needed(path, tmp_path):
    result = run("limit", path, "--name", "patients", "--epsilon", 9, "--delta", 1e-5, "--unit", "record")
    assert isinstance(result.exception, InvalidArgument)
    assert run("limit", tmp_path / "new.sqlite", "--name", "new", "--epsilon", 9, "--delta", 1e-5).exit_code == 2
    assert not (tmp_path / "new.sqlite").exists()
    result = run(
        "limit",
        tmp_path / "sum.sqlite",
        "--name",
        "new",
        "--epsilon",
        9,
        "--delta",
        1e-5,
        "--unit",
        "record",
        "--rule",
        "sum",
    )
    assert result.exit_code == 0
    assert json.loads(run("show", tmp_path / "sum.sqlite", "--json").stdout)["rule"] == "sum"
    assert (
        "room for runs whose ε add up to 9 and whose δ add up to 1e-05" in run("show", tmp_path / "sum.sqlite").stdout
    )


def test_verify(path):
    head = json.loads(run("show", path, "--json").stdout)["head"]
    assert run("verify", path, "--head", head).exit_code == 0
    assert run("verify", path, "--head", "0" * 64).exit_code == 1
    damage(path)
    result = run("verify", path)
    assert result.exit_code == 1
    assert "row 3: it does not match its hash" in result.output
    assert "damaged, row 3" in run("show", path).stderr


def test_export(path):
    rows = list(csv.DictReader(io.StringIO(run("export", path).stdout)))
    assert [(row["run"], row["step"]) for row in rows] == [("0", "0"), ("1", "0"), ("1", "1"), ("1", "2")]
    assert json.loads(rows[2]["content"]) == {"sample_rate": 1.0, "noise_multiplier": 4.0}
    exported = json.loads(run("export", path, "--json").stdout)
    assert [row["hash"] for row in exported] == [row["hash"] for row in rows]
    assert isinstance(run("export", path, "--json", "--csv").exception, InvalidArgument)


def test_the_ledger_of_a_single_run_is_shown_too(tmp_path):
    Ledger.create(tmp_path / "run" / "ledger.sqlite").close()
    result = run("show", tmp_path / "run" / "ledger.sqlite")
    assert "no limit over runs" in result.stdout
