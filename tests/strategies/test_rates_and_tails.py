"""Learning rates that the plan knows, the mean over the last steps, and several updates as one."""

import dataclasses
import math

import pytest
import torch

import apportion as ap
from apportion.releases import ClippedSum
from apportion.request import Released, Request
from apportion.strategies import Context
from apportion.strategies.descriptions import build, describe

REQUEST = Request(0.1, 1.0, 50.0, (ClippedSum(1.0),))
PARTS = (
    ap.update.LowPass(b=(0.05, 0.05)),
    ap.update.AdamW(decay=0.1),
    ap.update.LearningRate(warm_up=0.2, decay="linear"),
    ap.update.TailAverage(fraction=0.4),
)


def context(step, steps):
    return Context(step, steps, sample_rate=0.1)


def rates(steps, **options):
    update = ap.update.LearningRate(**options)
    return [update.rate(context(step, steps)) for step in range(1, steps + 1)]


def released(value):
    return Released(REQUEST, {"w": torch.tensor([float(value)], dtype=torch.float64)})


def follow(update, values, steps=None):
    """State and average after these gradients, with weights t·(1, 1) after step t."""
    state = update.init({"w": torch.zeros(1, dtype=torch.float64)})
    if hasattr(update, "begin"):
        state = update.begin(state, context(1, steps or len(values)))
    answers = []
    for step, value in enumerate(values, start=1):
        answers.append(update.transform(state, released(value))["w"].item())
        state = update.observe(state, released(value), {"w": torch.full((1,), float(step), dtype=torch.float64)})
    return state, answers


def test_the_learning_rate_rises_and_falls_as_stated():
    assert rates(4) == [1.0] * 4
    assert rates(6, warm_up=0.5) == pytest.approx([1 / 3, 2 / 3, 1, 1, 1, 1])
    assert rates(4, decay="linear") == pytest.approx([1, 0.75, 0.5, 0.25])
    assert rates(6, warm_up=1 / 3, decay="linear") == pytest.approx([0.5, 1, 1, 0.75, 0.5, 0.25])
    assert rates(4, decay="cosine") == pytest.approx([(1 + math.cos(math.pi * p)) / 2 for p in (0, 0.25, 0.5, 0.75)])


@pytest.mark.parametrize("decay", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("steps", [1, 2, 3, 1000])
def test_no_step_is_without_a_learning_rate(decay, steps):
    found = rates(steps, warm_up=0.3, decay=decay)
    assert all(0 < rate <= 1 for rate in found)
    assert max(found) == 1.0


@pytest.mark.parametrize(("fraction", "steps", "first"), [(0.25, 8, 7), (1.0, 5, 1), (0.01, 5, 5), (0.5, 5, 4)])
def test_the_mean_is_of_the_last_steps(fraction, steps, first):
    update = ap.update.TailAverage(fraction)
    state, answers = follow(update, range(1, steps + 1))
    assert answers == list(range(1, steps + 1)), "the gradient is not touched"
    assert update.averaged(state)["w"].item() == pytest.approx(sum(range(first, steps + 1)) / (steps + 1 - first))
    early, _ = follow(update, range(1, first), steps)
    assert update.averaged(early) is None


def test_the_mean_is_not_a_view_of_the_weights():
    update, weights = ap.update.TailAverage(1.0), {"w": torch.tensor([3.0])}
    state = update.observe(update.begin(update.init(weights), context(1, 2)), released(0), weights)
    weights["w"].zero_()
    assert update.averaged(state)["w"].item() == 3.0


def test_a_chain_is_its_parts_one_after_the_other():
    """AdamW gets what the filter made of each gradient, not the gradient; every part keeps its own state."""
    chain = ap.update.Chain(PARTS)
    values = [0.3, -0.1, 0.2, 0.5, 0.4]
    states, answers = follow(chain, values)
    filtered_states, smooth = follow(PARTS[0], values)
    adam_state, expected = follow(PARTS[1], smooth)
    assert answers == pytest.approx(expected)
    assert states[0]["gains"] == filtered_states["gains"]
    assert states[1]["second"]["w"].item() == adam_state["second"]["w"].item()
    assert chain.averaged(states)["w"].item() == pytest.approx((4 + 5) / 2)
    assert [chain.rate(context(step, 10)) for step in (1, 2, 3, 10)] == pytest.approx([0.5, 1, 1, 1 / 8])
    assert chain.optimizing
    assert not ap.update.Chain((PARTS[0], PARTS[3])).optimizing


def test_chains_in_chains_are_one_chain():
    assert ap.update.Chain((ap.update.Chain(PARTS[:2]), *PARTS[2:])) == ap.update.Chain(PARTS)


def test_a_plain_part_without_an_average_leaves_the_one_there_is():
    chain = ap.update.Chain((ap.update.Plain(), PARTS[3]))
    state, _ = follow(chain, range(5))
    assert chain.averaged(state)["w"].item() == pytest.approx(4.5)
    assert ap.update.Chain((ap.update.Plain(),)).averaged([None]) is None


def test_a_chain_survives_a_file():
    update = ap.update.Chain(PARTS)
    found = describe(update)
    assert [one["kind"] for one in found["parts"]] == ["LowPass", "AdamW", "LearningRate", "TailAverage"]
    assert build("update", found) == update
    recipe = ap.Recipe(update=update)
    budget = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())
    plan = ap.plan(recipe, budget=budget, population=1000, sample_rate=0.2, steps=4)
    assert type(plan).from_json(plan.to_json()).recipe.update == update


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ((), "nothing to do"),
        ("LowPass", "not a list of updates"),
        ((ap.update.LowPass,), "not a list of updates"),
        ((ap.clip.Fixed(),), "not a list of updates"),
        ((ap.update.AdaDP(),), "AdaDP.*sets the weights itself"),
        ((ap.update.Plain(average=0.9), ap.update.TailAverage()), "Plain and TailAverage.*each of them averages"),
        ((ap.update.AdamW(), ap.update.AdamW()), "each of them optimises"),
        ((ap.update.LowPass(), ap.update.AdamW(corrected=True)), "not what LowPass makes of it"),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts, words):
    with pytest.raises(ap.InvalidArgument, match=rf"^update\.parts.*{words}"):
        ap.update.Chain(parts)


def test_a_corrected_adamw_stands_first():
    parts = (dataclasses.replace(PARTS[1], corrected=True), *PARTS[2:])
    assert ap.update.Chain(parts).parts == parts


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: ap.update.LearningRate(warm_up=1.0), "warm_up"),
        (lambda: ap.update.LearningRate(warm_up=-0.1), "warm_up"),
        (lambda: ap.update.LearningRate(decay="cosin"), "decay"),
        (lambda: ap.update.TailAverage(0.0), "fraction"),
        (lambda: ap.update.TailAverage(1.5), "fraction"),
    ],
)
def test_bad_input_is_named(build, named):
    with pytest.raises(ap.InvalidArgument, match=rf"^update\.{named}"):
        build()
