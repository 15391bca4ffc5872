"""The candidates of a search."""

import numpy as np
import pytest
import torch

import apportion as ap
from apportion.errors import InvalidArgument
from apportion.tuning.space import Space


def test_every_combination_is_a_candidate(plans):
    space = Space(
        plans,
        {
            "lr": np.geomspace(0.5, 2.0, 3),
            "optimizer": ["sgd", "adam"],
            "sample_rate": [0.5, 1.0],
            "model.width": range(2, 4),
            "update.average": [None, 0.9],
        },
    )
    assert space.size == len(space.candidates) == 2 * 3 * 2 * 2 * 2 * 2
    assert len({repr(one.settings) for one in space.candidates}) == space.size
    for number, one in enumerate(space.candidates):
        assert space.number(*space.choices(number)) == number
        assert one.plan.recipe.name == one.settings["recipe"]
        assert one.plan.sampling.sample_rate == one.settings["sample_rate"]
        assert one.plan.recipe.update.average == one.settings["update.average"]
        assert (one.lr, one.optimizer) == (one.settings["lr"], one.settings["optimizer"])
        assert one.options == {"width": one.settings["model.width"]}
        assert type(one.lr) is float
        assert one.plan.epsilon <= one.plan.budget.epsilon


def test_the_length_of_a_run_follows_its_epochs_or_stays(budget):
    plan = ap.plan("abadi", budget=budget, population=1000, batch_size=100, epochs=2)
    stays = Space(plan, {"batch_size": [50, 100]}, lr=0.5).candidates
    assert [one.plan.steps for one in stays] == [20, 20]
    follows = Space(plan, {"batch_size": [50, 100], "epochs": [2]}, lr=0.5).candidates
    assert [one.plan.steps for one in follows] == [40, 20]


def test_settings_that_cost_nothing_keep_the_plan_as_it_is(plan):
    one, other = Space(plan, {"clip.threshold": [0.5, 2.0]}, lr=0.5).candidates
    assert one.plan.multipliers == other.plan.multipliers == plan.multipliers
    assert (one.plan.clip.threshold, other.plan.clip.threshold) == (0.5, 2.0)


def test_noise_that_is_varied_is_planned_anew(plan):
    one, other = Space(plan, {"noise.multiplier": [None, 50.0]}, lr=0.5).candidates
    assert one.plan.multipliers == plan.multipliers
    assert set(other.plan.multipliers) == {50.0}


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"learning_rate": [0.1]}, "Did you mean 'lr'"),
        ({"clip": [0.1]}, "there is no such setting"),
        ({"clip.treshold": [0.1], "lr": [1.0]}, "no such parameter"),
        ({"lr": []}, "nothing to choose from"),
        ({"lr": 0.1}, "not a list of values"),
        ({"lr": "0.1"}, "not a list of values"),
        ({"lr": [0.1, 0.1]}, "stands there twice"),
        ({"lr": [-1.0]}, "lr=-1.0"),
        ({"lr": [1.0], "batch_size": [5], "sample_rate": [0.1]}, "both say the same"),
        ({"lr": [1.0], "epochs": [5], "steps": [3]}, "both say the same"),
        ({"lr": [1.0], "batch_size": [500]}, "exceeds population"),
        ({"lr": [1.0 + n for n in range(1000)], "model.a": range(1000)}, "100,000 are the most"),
        ([("lr", [0.1])], "not a mapping"),
    ],
)
def test_spaces_that_make_no_sense(plan, space, words):
    with pytest.raises(InvalidArgument, match=words):
        _ = Space(plan, space).candidates


def test_a_learning_rate_must_come_from_one_place(plan):
    with pytest.raises(InvalidArgument, match="there is none"):
        Space(plan, {"model.width": [3]})
    with pytest.raises(InvalidArgument, match="varies it too"):
        Space(plan, {"lr": [0.1]}, lr=0.5)


def test_plans_must_be_comparable(plans, plan, budget):
    other = ap.plan("andrew", budget=budget, population=41, sample_rate=1.0, steps=4)
    for wrong, words in (
        ([plan, plan], "same name"),
        ([*plans, other], "cannot be compared"),
        ([], "nothing to try"),
        ("abadi", "executes a Plan"),
        (plan.recipe, "executes a Plan"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            Space(wrong, {"lr": [0.1]})


def test_a_space_is_described_without_addresses(plan):
    described = Space(plan, {"optimizer": [torch.optim.SGD, "adam"], "update.average": [None, 0.5]}, lr=0.5).describe()
    assert described["space"] == {"optimizer": ["torch.optim.sgd:SGD", "adam"], "update.average": [None, 0.5]}


@pytest.mark.parametrize("recipe", ["yu-validation", "fay-adaptive"])
def test_multipliers_that_follow_released_values_are_not_searched(budget, recipe):
    plan = ap.plan(recipe, budget=budget, population=1000, sample_rate=1.0, steps=20)
    with pytest.raises(InvalidArgument, match="fixed in advance"):
        Space(plan, {"lr": [0.1]})
