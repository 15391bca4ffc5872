"""Thresholds that are known in advance: closed forms at start, middle and end, files of thresholds, and strategies with two roles."""

import dataclasses
import itertools
import json
import math

import pytest
import torch
from torch import nn

import runs
from apportion import InvalidArgument, clip, noise, update
from apportion.strategies.context import Context
from apportion.strategies.noise import NoiseSchedule
from apportion.strategies.recipes.recipe import NoiseOf, Recipe


def thresholds(strategy, steps=1000, rate=0.1):
    state = strategy.init(Context(1, steps, rate))
    return [strategy.propose(state, Context(t, steps, rate))[0].threshold for t in range(1, steps + 1)]


# --- linear decay, and the same with a fixed standard deviation -----------------------------------------------------------------


@pytest.mark.parametrize("strategy", [clip.LinearDecay(12.0, 500), clip.FixedDeviation(12.0, 500)])
def test_the_threshold_falls_to_its_half_at_the_end_of_the_ramp_and_stays(strategy):
    values = thresholds(strategy)
    assert values[0] == pytest.approx(12 / (1 + 1 / 500))  # t starts at 1
    assert values[249] == pytest.approx(12 / 1.5)
    assert values[498] > 6.0
    assert set(values[499:]) == {6.0}
    assert all(later < earlier for earlier, later in itertools.pairwise(values[:500]))


def test_without_a_ramp_the_threshold_falls_over_the_whole_run():
    values = thresholds(clip.LinearDecay(3.0), steps=40)
    assert values[19] == pytest.approx(2.0)
    assert values[38] > values[39] == 1.5


def test_a_fixed_deviation_keeps_the_noise_and_lowers_the_price():
    strategy = clip.FixedDeviation(2.0, ramp_steps=30)
    contexts = [Context(t, 50, 0.1) for t in range(1, 51)]
    assert [strategy.threshold_at(c) * strategy.relative(c) for c in contexts] == pytest.approx([2.0] * 50)
    assert strategy.relative(contexts[0]) == pytest.approx(1 + 1 / 30)
    assert strategy.relative(contexts[29]) == strategy.relative(contexts[49]) == 2.0


def test_a_run_with_a_fixed_deviation_is_priced_by_its_own_multipliers(model, records, budget):
    """Both roles at once, and also where the given multiplier affords fewer steps than were asked for."""
    for strategy, steps in ((clip.FixedDeviation(0.5, 4), 6), (clip.FixedDeviation(0.5, 4, multiplier=1.0), 40)):
        run = runs.train(
            model,
            nn.CrossEntropyLoss(),
            records,
            budget=budget,
            population=40,
            sample_rate=0.25,
            steps=steps,
            lr=0.1,
            clip=strategy,
            seed=1,
        )
        products = [entry.clip[0] * entry.noise_multiplier for entry in run.history]
        assert products == pytest.approx([products[0]] * len(products))
        assert run.history[3].noise_multiplier / run.history[0].noise_multiplier == pytest.approx(2 / 1.25)
        paid = [event.noise_multiplier for event in run._session.account.ledger.events()]
        assert paid == [entry.noise_multiplier for entry in run.history]
        assert run.epsilon() <= 3.0
        if strategy.multiplier:
            assert run.history[0].noise_multiplier == pytest.approx(1.25)
            assert len(run.history) < 40


# --- who owns which role ------------------------------------------------------------------------------------------------------------


def test_roles_that_nobody_filled_have_defaults():
    recipe = Recipe()
    assert (recipe.clip, recipe.noise, recipe.update) == (clip.Fixed(), noise.Constant(), update.Plain())
    given = clip.Decay(), noise.GrowingMu()
    recipe = Recipe(clip=given[0], noise=given[1])
    assert (recipe.clip, recipe.noise) == given


def test_a_strategy_with_two_roles_fills_both():
    strategy = clip.FixedDeviation(1.0, 10, multiplier=2.5)
    recipe = Recipe(clip=strategy)
    multipliers = recipe.noise
    assert recipe.clip is strategy
    assert isinstance(multipliers, NoiseSchedule)
    assert not hasattr(multipliers, "observe")  # it follows nothing that is released
    assert (multipliers.multiplier, multipliers.relative(Context(5, 100, 0.1))) == (2.5, 1.5)
    assert Recipe(clip=strategy, noise=multipliers) == recipe == Recipe(clip=strategy, noise=strategy)


@pytest.mark.parametrize(
    "other", [noise.Constant(), noise.GrowingMu(), clip.FixedDeviation(2.0), NoiseOf(clip.FixedDeviation(2.0))]
)
def test_two_strategies_cannot_own_one_role(other):
    with pytest.raises(InvalidArgument, match="two strategies own one role: FixedDeviation"):
        Recipe(clip=clip.FixedDeviation(), noise=other)


@pytest.mark.parametrize("beside", [clip.Fixed(), clip.Quantile()])
def test_a_strategy_with_two_roles_is_passed_as_clip(beside):
    with pytest.raises(InvalidArgument, match="Pass it as clip= and leave noise= out"):
        Recipe(clip=beside, noise=clip.FixedDeviation())


# --- sequences ------------------------------------------------------------------------------------------------------------------


def test_a_sequence_goes_by_epochs_and_holds_its_last_value():
    values = thresholds(clip.Sequence((0.5, 0.2, 0.7)), steps=60)
    assert values == [0.5] * 10 + [0.2] * 10 + [0.7] * 40


@pytest.mark.parametrize(
    "text", ["[0.5, 0.2, 1]", ' {"thresholds": [0.5, 0.2, 1.0], "data": "public"}\n', "0.5\n0.2\n\n1e0\n", "0.5 0.2 1"]
)
def test_a_file_of_thresholds(tmp_path, text):
    file = tmp_path / "thresholds"
    file.write_text(text, encoding="utf-8")
    sequence = clip.Sequence(file=str(file))
    assert sequence == clip.Sequence([0.5, 0.2, 1.0])
    assert clip.Sequence(file=file) == sequence
    file.write_text("[9]", encoding="utf-8")
    assert sequence.thresholds == (0.5, 0.2, 1.0)
    file.unlink()
    regrouped = dataclasses.replace(sequence, groups="layer")  # does not read again
    assert regrouped.thresholds == sequence.thresholds


def test_one_number_is_a_file_too(tmp_path):
    (tmp_path / "one").write_text("0.25\n", encoding="utf-8")
    assert clip.Sequence(file=tmp_path / "one").thresholds == (0.25,)


DAMAGED = {
    "not JSON": ("[0.5, ", "clip.file"),
    "an object of other things": ('{"threshold": [1]}', "holds no thresholds"),
    "not a list": ('{"thresholds": 1}', "holds no thresholds"),
    "an empty list": ("[]", "holds no thresholds"),
    "an empty file": ("", "holds no thresholds"),
    "words": ("0.5\nhalf\n", "could not convert"),
    "zero": ("[0.5, 0.0]", r"thresholds\[1\]=0.0"),
    "negative": ("0.5\n-1\n", r"thresholds\[1\]=-1.0"),
    "not a number": ("[NaN]", r"thresholds\[0\]=nan"),
    "infinite": ("inf", r"thresholds\[0\]=inf"),
    "texts": ('["a"]', "a number is needed"),
    "nested": ("[[1.0]]", "a number is needed"),
    "deep": ("[" * 100_000, "clip.file"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_is_refused_where_it_is_named(tmp_path, case):
    text, words = DAMAGED[case]
    file = tmp_path / "thresholds.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidArgument, match=words):
        clip.Sequence(file=file)


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="No such file"):
        clip.Sequence(file=tmp_path / "nothing.json")
    with pytest.raises(InvalidArgument, match="clip.file"):
        clip.Sequence(file=tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidArgument, match="utf-8"):
        clip.Sequence(file=tmp_path / "binary")
    with pytest.raises(InvalidArgument, match="it is not a path"):
        clip.Sequence(file=3)


def test_both_a_file_and_thresholds_or_neither(tmp_path):
    (tmp_path / "file").write_text(json.dumps([1.0]), encoding="utf-8")
    with pytest.raises(InvalidArgument, match="only one can count"):
        clip.Sequence((1.0,), file=tmp_path / "file")
    waiting = clip.Sequence()
    with pytest.raises(InvalidArgument, match="Pass file= or thresholds="):
        waiting.propose(None, Context(1, 10, 0.1))
    assert dataclasses.replace(waiting, file=tmp_path / "file").thresholds == (1.0,)


def test_a_run_that_waits_for_its_thresholds_charges_nothing(model, records, budget, tmp_path):
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(InvalidArgument, match="it needs thresholds, and has none"):
        runs.train(
            model,
            nn.CrossEntropyLoss(),
            records,
            budget=budget,
            population=40,
            sample_rate=0.25,
            steps=3,
            lr=0.1,
            clip=clip.Sequence(),
            out=tmp_path / "run",
        )
    assert not list(tmp_path.rglob("*.sqlite"))
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


# --- automatic --------------------------------------------------------------------------------------------------------------------


def test_automatic_asks_for_normalised_sums():
    (release,) = clip.Automatic(0.5, 0.02).propose(None, Context(1, 10, 0.1, parameter_shapes={"w": (2,)}))
    assert (release.threshold, release.stabiliser, release.share) == (0.5, 0.02, 1.0)
    shapes = {"a.weight": (2, 2), "b.weight": (3,)}
    both = clip.Automatic(groups="layer").propose(None, Context(1, 10, 0.1, parameter_shapes=shapes))
    assert [one.threshold for one in both] == pytest.approx([math.sqrt(0.5)] * 2)
    assert {one.stabiliser for one in both} == {0.01}


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: clip.LinearDecay(0.0), "clip.start=0.0"),
        (lambda: clip.LinearDecay(ramp_steps=0), "clip.ramp_steps=0"),
        (lambda: clip.LinearDecay(ramp_steps=2.5), "clip.ramp_steps=2.5"),
        (lambda: clip.FixedDeviation(math.inf), "clip.start=inf"),
        (lambda: clip.FixedDeviation(ramp_steps=-1), "clip.ramp_steps=-1"),
        (lambda: clip.FixedDeviation(multiplier=0.0), "clip.multiplier=0.0"),
        (lambda: clip.Sequence(0.5), "clip.thresholds=0.5"),
        (lambda: clip.Sequence("0.5"), "it is not a list of numbers"),
        (lambda: clip.Sequence((1.0, -1.0)), r"clip.thresholds\[1\]=-1.0"),
        (lambda: clip.Automatic(0.0), "clip.threshold=0.0"),
        (lambda: clip.Automatic(stabiliser=0.0), "clip.stabiliser=0.0"),
        (lambda: clip.Automatic(stabiliser=math.nan), "clip.stabiliser=nan"),
    ],
)
def test_hyper_parameters_out_of_range_are_refused(build, words):
    with pytest.raises(InvalidArgument, match=words):
        build()
