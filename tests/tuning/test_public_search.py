"""A search on public records: free, the same trials for every recipe, pruned, in several processes, and it goes on after a crash."""

import json
import sys

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
from apportion import extras
from apportion.errors import InvalidArgument, MissingExtra
from apportion.tuning.task import Task
from tuning.small_models import STEPS, make_model

pytest.importorskip("optuna")
SPACE = {"lr": [0.05, 0.5, 2.0, 8.0], "model.width": [2, 3]}


@pytest.fixture
def search(records, plans, evaluate, tmp_path):
    def run(**changed):
        settings = {"space": SPACE, "evaluate": evaluate, "trials": 4} | changed
        data, made, planned = (
            settings.pop(key, default)
            for key, default in (("data", ap.Public(records)), ("model", make_model), ("plan", plans))
        )
        return ap.tune(made, cross_entropy, data, planned, **settings)

    return run


def settings_of(tuned, recipe):
    return [
        {name: value for name, value in trial.settings.items() if name != "recipe"}
        for trial in tuned.trials
        if trial.settings["recipe"] == recipe
    ]


def test_every_recipe_gets_the_same_trials_and_nothing_is_charged(search, plans):
    tuned = search()
    assert settings_of(tuned, "abadi") == settings_of(tuned, "lin-decay")
    assert len(settings_of(tuned, "abadi")) == 4
    assert tuned.score == max(trial.score for trial in tuned.trials if not trial.pruned)
    assert tuned.epsilon == 0
    assert tuned.price is tuned.run is tuned.statement() is None
    assert "free: public data" in str(tuned)
    assert tuned.plan.budget == plans[0].budget  # for the private run, with the whole budget
    assert tuned.plan.multipliers == next(p for p in plans if p.recipe.name == tuned.settings["recipe"]).multipliers
    content = json.loads(tuned.to_json())
    assert len(content["trials"]) == 8
    assert "free" in content["price"]


@pytest.mark.slow
def test_the_same_seed_finds_the_same_and_leaves_the_global_generator_alone(search):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = search(seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert search(seed=1).trials == first.trials
    assert search(seed=2).trials != first.trials


def test_after_the_first_ones_trials_are_proposed(search, plan):
    tuned = search(plan=plan, trials=13, space={"lr": [0.01 * 1.5**n for n in range(20)]})
    assert len(tuned.trials) == 13


def test_a_batch_has_the_same_size_on_fewer_public_records(search, records, budget, monkeypatch):
    """The noise of each step is that of the private run; the rate follows from the number of public records."""
    plan = ap.plan("abadi", budget=budget, population=4000, batch_size=20, steps=STEPS)
    seen = []
    opened = Task.open

    def watched(task, candidate, executed, *others, **named):
        seen.append(executed)
        return opened(task, candidate, executed, *others, **named)

    monkeypatch.setattr(Task, "open", watched)
    search(plan=plan)
    for executed in seen:
        assert executed.multipliers == plan.multipliers
        assert executed.sampling.sample_rate == 20 / 40
        assert executed.sampling.expected_batch_size == 20


@pytest.mark.slow
def test_hopeless_trials_are_pruned(search, plan, budget, monkeypatch):
    def made_up(task, session):
        return 1 / (1 + abs(session.optimizer.param_groups[0]["lr"] - 0.5))

    monkeypatch.setattr(Task, "rank", made_up)
    plan = ap.plan("abadi", budget=budget, population=40, sample_rate=1.0, steps=8)
    tuned = search(plan=plan, trials=20, space={"lr": [0.5, *(10.0 + n for n in range(9))], "model.width": [3, 2]})
    pruned = [trial for trial in tuned.trials if trial.pruned]
    assert pruned
    assert all(trial.settings["lr"] != 0.5 for trial in pruned)
    assert tuned.settings["lr"] == 0.5
    assert tuned.score == 1.0


def test_an_interrupted_search_goes_on(search, tmp_path, monkeypatch):
    rank, count = Task.rank, []

    def failing(task, session):
        count.append(session.step)
        if len(count) == 15:
            raise KeyboardInterrupt
        return rank(task, session)

    with monkeypatch.context() as broken:
        broken.setattr(Task, "rank", failing)
        with pytest.raises(KeyboardInterrupt):
            search(storage=ap.Storage(tmp_path / "search"))
    shown = []
    tuned = search(
        storage=ap.Storage(tmp_path / "search", resume=True), progress=lambda trial, done, total: shown.append(done)
    )
    assert 0 < len(shown) < 8
    assert shown[-1] == 8
    whole = search()
    for recipe in ("abadi", "lin-decay"):
        assert sorted(map(str, settings_of(tuned, recipe))) == sorted(map(str, settings_of(whole, recipe)))
    more = search(storage=ap.Storage(tmp_path / "search", resume=True), trials=5)
    assert len(more.trials) == 10


@pytest.mark.slow
def test_processes_train_at_one_time(search):
    alone, together = search(), search(processes=2)
    assert together.trials == alone.trials or sorted(map(str, together.trials)) == sorted(map(str, alone.trials))


def test_a_search_goes_on_with_its_own_settings_only(search, tmp_path):
    search(storage=ap.Storage(tmp_path / "search"))
    with pytest.raises(InvalidArgument, match="started with seed = 0, and now it is 1"):
        search(storage=ap.Storage(tmp_path / "search", resume=True), seed=1)
    with pytest.raises(InvalidArgument, match="an earlier search already"):
        search(storage=ap.Storage(tmp_path / "search"))
    with pytest.raises(InvalidArgument, match="no search to go on with"):
        search(storage=ap.Storage(tmp_path / "nowhere", resume=True))
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"trials": None}, "a search is free"),
        ({"trials": 0}, "trials=0"),
        ({"expected_trials": 4}, "a search is free"),
        ({"processes": 0}, "processes=0"),
        ({"processes": 2, "model": lambda: nn.Linear(4, 2), "space": {"lr": [1.0]}}, "cannot be"),
        ({"storage": ap.Storage(ledger="ledger.sqlite")}, "nothing is charged"),
        ({"storage": ap.Storage(every=3)}, "repeated from its beginning"),
        ({"evaluate": (torch.zeros(3, 4), torch.zeros(3))}, "un-noised read"),
    ],
)
def test_bad_input(search, changed, words):
    with pytest.raises(InvalidArgument, match=words):
        search(**changed)


def test_without_optuna_the_extra_is_named(search, monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"optuna is not installed.*apportion\[tune\]"):
        search()


def test_optuna_is_imported_when_it_is_needed(plan):
    import subprocess

    code = "import sys, apportion; apportion.tune; apportion.Tuned; sys.exit('optuna' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
