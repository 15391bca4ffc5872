"""Updates of the plan in whole runs: crashes, loops of one's own, optimisers that they replace, settings of files and commands."""

import os
import tomllib
from dataclasses import replace

import pytest
import torch
from torch import nn

import apportion as ap
from apportion.cli.compare_command import choose_recipes
from apportion.compare.defaults import with_training_defaults
from apportion.compare.experiment import RecipeChoice
from apportion.training.packing import pack

LOSS = nn.CrossEntropyLoss()
BUDGET = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())
RATES = ap.update.LearningRate(warm_up=0.3, decay="linear")
UPDATES = {
    "corrected AdamW": ap.update.Chain((ap.update.AdamW(corrected=True), RATES, ap.update.TailAverage(0.5))),
    "filtered": ap.update.Chain((ap.update.LowPass(a=(-0.7, -0.2), b=(0.05, 0.05)), RATES)),
}


def planned(update, steps=10, **options):
    return ap.plan(ap.Recipe(update=update), budget=BUDGET, population=40, sample_rate=0.25, steps=steps, **options)


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def train(plan, records, model=None, **options):
    return ap.train(model or make_model(), LOSS, records, plan, **{"lr": 0.1, "progress": False} | options)


class Died(Exception):
    pass


def dies_at(step):
    def watch(entry):
        if entry.step == step:
            raise Died

    return watch


@pytest.mark.parametrize("name", UPDATES)
def test_an_exact_run_is_the_same_with_and_without_a_crash(name, records, tmp_path, monkeypatch):
    """The key is fixed here, so that two runs can be compared: weights, moments, past gradients and means, bit for bit."""
    monkeypatch.setattr(os, "urandom", lambda count: bytes(count))
    plan = planned(UPDATES[name])
    whole = train(plan, records, storage=ap.Storage(tmp_path / "whole", recovery="exact", every=3))
    torn = ap.Storage(tmp_path / "torn", recovery="exact", every=3)
    for resume, step in ((False, 5), (True, 7)):
        with pytest.raises(Died):
            train(plan, records, storage=replace(torn, resume=resume), progress=dies_at(step))
    last = train(plan, records, storage=replace(torn, resume=True))
    assert pack(last._session.state()) == pack(whole._session.state())
    assert [one.learning_rate for one in last.history] == [one.learning_rate for one in whole.history]
    with pytest.raises(ap.InvalidArgument, match=r"the run was started with plan\.recipe\.update"):
        train(planned(ap.update.Plain()), records, storage=replace(torn, resume=True))


def test_learning_rates_of_the_plan_multiply_those_of_a_loop_and_its_scheduler(records):
    """What a person's scheduler sees is the learning rate without the plan's factor: nothing adds up."""
    model = make_model()
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 4.0}], lr=1.0
    )
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    private = ap.make_private(model, optimizer, records, planned(RATES), scheduler=scheduler)
    for inputs, targets in private.batches():
        LOSS(private.model(inputs), targets).backward()
        private.optimizer.step()
        assert optimizer.param_groups[0]["lr"] in [0.5**step for step in range(11)]
    factors = (1 / 3, 2 / 3, 1, 1, 6 / 7, 5 / 7, 4 / 7, 3 / 7, 2 / 7, 1 / 7)
    found = [entry.learning_rate for entry in private.run.history]
    assert found == [pytest.approx((0.5**t * f, 4 * 0.5**t * f)) for t, f in enumerate(factors)]


@pytest.mark.parametrize(
    "optimizer",
    [
        "adam",
        "momentum",
        lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, weight_decay=0.1),
        lambda parameters, lr: torch.optim.SGD([{"params": parameters}, {"params": [], "momentum": 0.5}], lr=lr),
    ],
)
def test_a_second_optimiser_behind_adamw_is_refused(optimizer, records, tmp_path):
    storage = ap.Storage(tmp_path / "run")
    with pytest.raises(ap.InvalidArgument, match=r"^optimizer='(Adam|SGD)': AdamW is an optimiser itself"):
        train(planned(UPDATES["corrected AdamW"]), records, optimizer=optimizer, storage=storage)
    assert not (tmp_path / "run").exists()


class NoRate(ap.update.LearningRate):
    def rate(self, context):
        return 0.0 if context.step == context.steps else 1.0


def test_a_step_that_would_change_nothing_is_refused_before_it_is_paid(records, tmp_path):
    with pytest.raises(ap.InvalidArgument, match=r"update\.rate=0\.0.*step 10 would be paid for"):
        train(planned(NoRate()), records, storage=ap.Storage(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_weights_at_the_end_are_the_mean_of_the_last_steps(records):
    course = []
    model = make_model()
    run = train(
        planned(ap.update.TailAverage(0.3)),
        records,
        model,
        progress=lambda entry: course.append(model[0].weight.clone()),
    )
    torch.testing.assert_close(run.averaged[0].weight, torch.stack(course[-3:]).mean(0))
    assert planned(ap.update.TailAverage(0.3)).recipe.describe()["update"] == {"kind": "TailAverage", "fraction": 0.3}


TOML = """
name = "default"
update.average = 0.8
update.LearningRate = {warm_up = 0.1, decay = "cosine"}
"""
LISTED = """
name = "abadi"
update = {kind = "Chain", parts = [{kind = "LowPass"}, {kind = "AdamW", decay = 0.2}]}
"""


def test_a_file_says_which_parts_there_are():
    found = RecipeChoice.model_validate(tomllib.loads(TOML)).recipe().update
    assert found == ap.update.Chain((ap.update.Plain(average=0.8), ap.update.LearningRate(0.1, "cosine")))
    found = RecipeChoice.model_validate(tomllib.loads(LISTED)).recipe().update
    assert found == ap.update.Chain((ap.update.LowPass(), ap.update.AdamW(decay=0.2)))


def test_settings_of_the_command_line_go_to_every_recipe_that_can_have_the_part(capsys):
    settings = {"update.LearningRate.decay": "linear"}
    choices = choose_recipes(None, ["default", "doppler", "adadp", "non-private"], settings)
    assert [bool(choice.get("update")) for choice in choices] == [True, True, False, False]
    assert "adadp, non-private has no such parameter" in " ".join(capsys.readouterr().err.split())
    assert RecipeChoice.model_validate(choices[1]).recipe().update.parts[1].decay == "linear"
    with pytest.raises(ap.InvalidArgument, match="none of the recipes has such a parameter"):
        choose_recipes(None, ["default"], {"update.LearningRate.decai": "linear"})


def test_adamw_has_a_learning_rate_of_its_own_where_nothing_is_said():
    """The defaults of SGD, with which a step of Adam is a hundred times too long, and momentum, which it refuses, are not for it."""
    values = {"data": "mnist", "features": "scatter", "recipe": [{"name": "adamw"}, {"name": "abadi"}]}
    adamw, abadi = with_training_defaults(values)["recipe"]
    assert adamw["lr"] <= 0.1
    assert adamw["momentum"] == 0.0
    assert "lr" not in abadi
    said = with_training_defaults(values | {"lr": 0.5, "momentum": 0.3})["recipe"][0]
    assert said == {"name": "adamw"}
