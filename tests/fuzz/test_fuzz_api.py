"""Wrong arguments of the Python API: an `ApportionError` that names the argument, or a value that is what it should be."""

import dataclasses
import math

import pytest
from fuzz_commands import PATIENCE, no_hang
from fuzz_share import share
from fuzz_values import mutated, values
from hypothesis import given
from hypothesis import strategies as st

import apportion as ap
from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.accounting.calibration import calibrate
from apportion.accounting.rules import ConcentratedFilter, GaussianFilter, Multiset, RenyiFilter, charge
from apportion.accounting.run_filter import GaussianRuns, SumOfRuns
from apportion.accounting.schedules import schedule_from_history
from apportion.accounting.selection import NumberOfTrials, selection_epsilon
from apportion.errors import ApportionError
from apportion.event import Event
from apportion.releases import ClippedSum
from apportion.request import Request
from apportion.sampling import Sampling
from apportion.strategies import recipes
from apportion.tuning.space import Space

BUDGET = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())
SMALL_PLAN = ap.plan("abadi", budget=BUDGET, population=100, batch_size=10, steps=3)
EVENT = Event(0.01, 1.0)


def price(epsilon, delta, group):
    accountant = PrivacyLossAccountant()
    accountant.delta({EVENT: 10}, epsilon)
    return accountant.epsilon({EVENT: 10}, delta, group=group)


def price_counted(events):
    return PrivacyLossAccountant().epsilon({EVENT: events}, 1e-5)


def fill(rule):
    charge(rule, Event(1.0, 10.0))
    return rule


CALLS = {
    "Budget": (ap.Budget, {"epsilon": 3.0, "delta": 1e-5, "unit": ap.Record()}),
    "EarlyStopping": (ap.EarlyStopping, {"patience": 5, "min_delta": 0.1}),
    "Event": (Event, {"sample_rate": 0.1, "noise_multiplier": 1.0}),
    "ClippedSum": (ClippedSum, {"threshold": 1.0, "parameters": ("a",), "share": 1.0, "headroom": 1e-4}),
    "Request": (
        Request,
        {"sample_rate": 0.1, "noise_multiplier": 1.0, "expected_batch_size": 4.0, "releases": (ClippedSum(1.0),)},
    ),
    "Sampling by rate": (Sampling.declare, {"population": 1000, "sample_rate": 0.1, "steps": 5}),
    "Sampling by size": (Sampling.declare, {"population": 1000, "batch_size": 100, "epochs": 5}),
    "clip.Fixed": (ap.clip.Fixed, {"threshold": 1.0}),
    "clip.Decay": (ap.clip.Decay, {"start": 1.0, "power": 0.5, "minimum": 1e-3}),
    "clip.SensitivityDecay": (ap.clip.SensitivityDecay, {"start": 1.5, "ratio": 2.0, "minimum": 1e-3}),
    "noise.Constant": (ap.noise.Constant, {"multiplier": 1.0}),
    "clip.LinearDecay": (ap.clip.LinearDecay, {"start": 1.0, "ramp_steps": 500}),
    "clip.FixedDeviation": (ap.clip.FixedDeviation, {"start": 1.0, "ramp_steps": 500, "multiplier": 1.0}),
    "clip.Sequence": (ap.clip.Sequence, {"thresholds": [1.0, 0.5]}),
    "clip.Quantile": (ap.clip.Quantile, {"start": 0.1, "quantile": 0.5, "rate": 0.2, "share": 0.1}),
    "clip.NormBased": (ap.clip.NormBased, {"start": 0.1, "proportion": 0.5, "headroom": 4.0, "share": 0.05}),
    "clip.AdaClip": (ap.clip.AdaClip, {"floor": 1e-5, "cap": 1e-4, "mean_decay": 0.9, "deviation_decay": 0.99}),
    "clip.Automatic": (ap.clip.Automatic, {"threshold": 1.0, "stabiliser": 0.01}),
    "noise.GrowingMu": (ap.noise.GrowingMu, {"ratio": 2.0, "multiplier": 1.0}),
    "noise.TimeDecay": (ap.noise.TimeDecay, {"rate": 0.05, "per": "epoch", "minimum": 0.01}),
    "noise.ExponentialDecay": (ap.noise.ExponentialDecay, {"rate": 0.01, "minimum": 0.01}),
    "noise.StepDecay": (ap.noise.StepDecay, {"factor": 0.6, "period": 10}),
    "noise.PolynomialDecay": (ap.noise.PolynomialDecay, {"end": 0.2, "power": 3.0, "period": 100}),
    "noise.GeometricDecay": (ap.noise.GeometricDecay, {"factor": 0.999, "multiplier": 1.0}),
    "noise.LinearDecay": (ap.noise.LinearDecay, {"end": 0.5, "multiplier": 1.0}),
    "noise.InfluenceWeighted": (ap.noise.InfluenceWeighted, {"contraction": 0.9, "span": 100.0}),
    "noise.PrivacyUtility": (ap.noise.PrivacyUtility, {"loss": "convex", "horizon": 100.0}),
    "recipes.lin_decay": (recipes.lin_decay, {"start": 1.0, "power": 0.5, "minimum": 1e-3, "multiplier": 1.0}),
    "recipes.du_dynamic": (recipes.du_dynamic, {"start": 1.5, "clip_ratio": 2.0, "noise_ratio": 2.0}),
    "recipes.named": (recipes.named, {"name": "abadi"}),
    "price": (price, {"epsilon": 1.0, "delta": 1e-5, "group": 1}),
    "price of counts": (price_counted, {"events": 3}),
    "calibrate": (
        lambda **given: calibrate(PrivacyLossAccountant(), [1.0] * 3, **given),
        {"sample_rate": 0.1, "epsilon": 1.0, "delta": 1e-5},
    ),
    "selection": (
        lambda **given: selection_epsilon({EVENT: 10}, **given),
        {"delta": 1e-5, "expected_runs": 5.0, "runs": "logarithmic", "score": "public"},
    ),
    "NumberOfTrials": (
        lambda expected_trials, distribution: NumberOfTrials(expected_trials, distribution).quantile(2**127),
        {"expected_trials": 5.0, "distribution": "logarithmic"},
    ),
    "Space": (
        lambda plan, space: Space(plan, space).candidates,
        {"plan": SMALL_PLAN, "space": {"lr": [0.5, 1.0], "clip.threshold": [1.0]}},
    ),
    "GaussianRuns": (lambda limit: GaussianRuns(limit).capacity(), {"limit": BUDGET}),
    "SumOfRuns": (lambda limit: SumOfRuns(limit).capacity(), {"limit": BUDGET}),
    "GaussianFilter": (lambda budget: fill(GaussianFilter(budget)), {"budget": BUDGET}),
    "ConcentratedFilter": (lambda budget: fill(ConcentratedFilter(budget)), {"budget": BUDGET}),
    "RenyiFilter": (RenyiFilter, {"budget": BUDGET, "weights": {14.0: 0.5, 20.0: 0.5}}),
    "Multiset": (lambda tokens, budget: Multiset({EVENT: tokens}, budget), {"tokens": 3, "budget": BUDGET}),
}

ALIASES = {
    "unit": ("unit",),
    "clip_ratio": ("ratio",),
    "noise_ratio": ("ratio",),
    "name": ("recipe",),
    "events": ("count", "events"),
    "tokens": ("tokens", "count", "events"),
    # Two arguments that are compared with each other are both named, or either.
    "start": ("start", "minimum"),
    "population": ("population", "batch_size", "epochs"),
    "sample_rate": ("sample_rate", "epochs", "steps"),
    "batch_size": ("batch_size", "epochs", "steps"),
    "epochs": ("epochs", "steps"),
    "epsilon": ("epsilon", "tokens"),
}


def refused(call, arguments, changed):
    """Whether the call was refused, with the name of an argument that was changed; what is returned must be in order."""
    result = complaint = None
    try:
        with no_hang(PATIENCE):
            result = call(**arguments)
    except ApportionError as error:
        complaint = str(error)
    if complaint is not None:
        names = [name for key in changed for name in ALIASES.get(key, (key,))]
        assert any(name in complaint for name in names), f"{complaint} does not name {changed}"
        assert len(complaint) < 5_000
        return True
    for field in dataclasses.fields(result) if dataclasses.is_dataclass(result) else ():
        name, value = field.name, getattr(result, field.name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            assert type(value) in (int, float), f"{name} is kept as {value!r}"
            assert math.isfinite(value), f"{name} is kept as {value!r}"
            assert value >= 0, f"{name} is kept as {value!r}"
    return False


@pytest.mark.parametrize("name", sorted(CALLS))
def test_arguments(tally, name):
    call, good = CALLS[name]
    refused(call, good, [])

    @share(10)
    @given(st.dictionaries(st.sampled_from(sorted(good)), values(), min_size=1, max_size=2))
    def check(changes):
        tally(refused(call, good | changes, list(changes)))

    check()


@pytest.mark.parametrize("name", sorted(CALLS))
def test_unknown_arguments(name):
    call, good = CALLS[name]
    with pytest.raises(TypeError, match="no_such_argument"):
        call(**good, no_such_argument=1)


def test_settings_of_recipes(tally):
    keys = (
        st.sampled_from(
            ["clip.threshold", "clip.start", "noise.multiplier", "noise.ratio", "clip", "clip.", "lr.a", ""]
        )
        | st.text()
    )
    names = st.sampled_from(sorted(recipes.RECIPES))

    @share(30)
    @given(names, st.dictionaries(keys, values(), min_size=1, max_size=2))
    def check(name, settings):
        tally(refused(recipes.named(name).with_settings, {"settings": settings}, list(settings)))

    check()


def test_histories(tally):
    good = [[1.0, 0.01, 10], {"sample_rate": 0.02, "noise_multiplier": 2.0, "count": 5}]

    @share(40)
    @given(mutated(good))
    def check(history):
        tally(refused(schedule_from_history, {"history": history}, ["history"]))

    check()
