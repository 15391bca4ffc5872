"""Runs of `train` and `make_private` on the ledger of a data set."""

import json

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
import runs
from apportion.accounting.ledger import Ledger
from apportion.accounting.run_filter import GaussianRuns
from apportion.training.statement import as_markdown

PLAN = {"population": 40, "sample_rate": 0.25, "steps": 3}


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "patients.sqlite"
    limit = ap.Budget(epsilon=2.0, delta=1e-5, unit=ap.Record())
    Ledger.create(file, name="patients", rule=GaussianRuns(limit)).close()
    return file


@pytest.fixture
def small():
    return ap.Budget(epsilon=1.0, delta=1e-5, unit=ap.Record())


def reading(path, question):
    ledger = Ledger.open(path)
    try:
        return question(ledger)
    finally:
        ledger.close()


def train(records, budget, path, **options):
    return runs.train(nn.Linear(4, 2), cross_entropy, records, budget=budget, lr=0.5, ledger=path, **PLAN | options)


def test_runs_share_the_limit_and_one_too_many_is_refused_before_its_first_step(records, small, path, tmp_path):
    run = train(records, small, path, out=tmp_path / "first")
    train(records, small, str(path))
    before = reading(path, lambda ledger: list(ledger.rows()))
    with pytest.raises(ap.BudgetExhausted, match="'patients'.*Requested.*Left.*Missing"):
        train(records, small, path, out=tmp_path / "third")
    assert reading(path, lambda ledger: list(ledger.rows())) == before
    assert not (tmp_path / "third").exists()
    assert sum(reading(path, Ledger.counts).values()) == 6
    assert run.epsilon() <= 1.0


def test_the_statement_names_the_data_set_its_limit_and_what_is_left(records, small, path, tmp_path):
    train(records, small, path)
    run = train(records, small, path, out=tmp_path / "run")
    facts = json.loads((tmp_path / "run" / "public" / "privacy.json").read_text())["data_set"]
    assert (facts["name"], facts["limit_epsilon"], facts["rule"], facts["run"]) == ("patients", 2.0, "gaussian", 2)
    assert 1.0 < facts["epsilon_admitted"] <= 2.0
    assert facts["ledger_head"] == reading(path, Ledger.head)
    text = as_markdown(run.statement())
    assert "patients, run 2 of 2 so far" in text
    assert "at most ε = 2, δ = 1e-05" in text
    assert "were not charged to its ledger" in text
    assert "together they cost more than one" not in text


def test_the_run_folder_keeps_a_copy_of_its_own_charges(records, small, path, tmp_path):
    train(records, small, path)
    train(records, small, path, steps=2, out=tmp_path / "run")
    copy = tmp_path / "run" / "secret" / "ledger.sqlite"
    assert sum(reading(copy, Ledger.counts).values()) == 2
    with pytest.raises(ap.InvalidArgument, match="there is an earlier run already"):
        train(records, small, path, out=tmp_path / "run")


def test_a_loop_of_ones_own_is_admitted_with_its_first_step(model, records, small, path):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    private = runs.make_private(model, optimizer, records, budget=small, ledger=path, **PLAN | {"sample_rate": 1.0})
    assert reading(path, Ledger.runs) == []
    for x, y in private.batches(steps=1):
        cross_entropy(private.model(x), y).backward()
        private.optimizer.step()
    (run,) = reading(path, Ledger.runs)
    assert len(run.plan) == 3
    assert private.statement()["data_set"]["run"] == 1


def test_a_seeded_run_is_refused(records, small, path):
    with pytest.raises(ap.InvalidArgument, match="with a seed is not private"):
        train(records, small, path, seed=1)
    assert reading(path, Ledger.runs) == []


def test_a_missing_ledger_is_refused(records, small, tmp_path):
    with pytest.raises(ap.InvalidArgument, match="cannot be read"):
        train(records, small, tmp_path / "typo.sqlite")
