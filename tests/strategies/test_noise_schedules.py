"""Noise schedules at their start, middle and end, and what the published values cost."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion import clip, noise
from apportion.accounting.central_limit import CentralLimitAccountant
from apportion.accounting.concentrated import (
    DisjointEpochsAccountant,
    TruncatedConcentratedAccountant,
    zcdp_epsilon,
)
from apportion.accounting.renyi import RenyiAccountant
from apportion.budget import Budget, Record
from apportion.event import Event
from apportion.sampling import Sampling
from apportion.strategies.context import Context
from runs import make_plan

PUBLISHED = {
    "constant": noise.Constant(8.0),
    "time": noise.TimeDecay(multiplier=10.0),
    "exponential": noise.ExponentialDecay(multiplier=10.0),
    "step": noise.StepDecay(multiplier=10.0),
    "polynomial": noise.PolynomialDecay(multiplier=10.0),
}


def shape(strategy, steps=1000, rate=0.1):
    """r_1..r_T. With rate 0.1 an epoch has ten steps, so that `shape(...)[10 * e]` is the first step after e epochs."""
    return [strategy.relative(Context(step, steps, rate)) for step in range(1, steps + 1)]


@pytest.mark.parametrize(
    ("strategy", "start", "middle", "end"),
    [
        (noise.Constant(), 1.0, 1.0, 1.0),
        (noise.GrowingMu(ratio=2.0), 2**-0.001, 2**-0.501, 0.5),
        (noise.TimeDecay(rate=0.05), 1.0, 1 / 3.5, 1 / 5.95),
        (noise.ExponentialDecay(rate=0.01), 1.0, math.exp(-0.5), math.exp(-0.99)),
        (noise.StepDecay(factor=0.6, period=10), 1.0, 0.6**5, 0.6**9),
        (noise.PolynomialDecay(end=0.2, power=3.0, period=100), 1.0, 0.3, 0.8e-6 + 0.2),
        (noise.GeometricDecay(factor=0.999), 1.0, 0.999**250, 0.999**499.5),
        (noise.LinearDecay(end=0.5), 1.0, 0.75, 0.5 + 0.5 / 1000),
        (noise.InfluenceWeighted(), math.exp(0.999), math.exp(0.499), 1.0),
        (noise.PrivacyUtility(), 1.0, 501**-0.5, 1000**-0.5),
        (noise.PrivacyUtility("convex", 100), 1.0, 6**-0.5, 10.99**-0.5),
        (noise.PrivacyUtility("strongly convex", 200), 1.0, 0.995**250, 0.995**499.5),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, noise.NoiseSchedule) else "",
)
def test_start_middle_end(strategy, start, middle, end):
    """Of 1,000 steps in 100 epochs: before the first, after 500 and before the last."""
    values = shape(strategy)
    assert [values[0], values[500], values[-1]] == pytest.approx([start, middle, end], rel=1e-12)


@pytest.mark.parametrize("name", ["time", "exponential", "polynomial"])
def test_decays_hold_for_an_epoch_and_start_at_zero(name):
    """t is the number of finished epochs: the whole first epoch has σ₀, the second has t = 1."""
    after_one = {"time": 1 / 1.05, "exponential": math.exp(-0.01), "polynomial": 0.8 * 0.99**3 + 0.2}[name]
    values = shape(PUBLISHED[name])
    assert set(values[:10]) == {1.0}
    assert values[10] == values[19] == pytest.approx(after_one, rel=1e-12)
    assert values[20] < values[19]


def test_a_step_decay_falls_after_whole_periods():
    values = shape(noise.StepDecay(factor=0.5, period=3), steps=100)
    assert values[:30] == [1.0] * 30
    assert values[30:60] == [0.5] * 30
    assert values[60] == 0.25


@pytest.mark.parametrize(
    "build",
    [
        lambda per: noise.TimeDecay(0.05, per=per),
        lambda per: noise.ExponentialDecay(0.01, per=per),
        lambda per: noise.StepDecay(0.6, 10, per=per),
        lambda per: noise.PolynomialDecay(0.2, 3.0, 100, per=per),
        lambda per: noise.GeometricDecay(0.99, per=per),
        lambda per: noise.PrivacyUtility("convex", 50, per=per),
    ],
)
def test_steps_of_one_pace_are_epochs_of_the_other(build):
    """Step t + 1 of a schedule in steps has what epoch t + 1 of the same schedule in epochs has."""
    by_epoch, by_step = shape(build("epoch"))[::10], shape(build("step"))[:100]
    assert by_epoch == by_step
    assert by_step[0] == 1.0 > by_step[-1]


def test_paces_by_default():
    assert noise.TimeDecay().per == noise.StepDecay().per == noise.PolynomialDecay().per == "epoch"
    assert noise.GeometricDecay().per == noise.PrivacyUtility().per == "step"


def test_the_polynomial_holds_its_end():
    values = shape(noise.PolynomialDecay(end=0.2, power=3.0, period=20))
    assert values[199] > 0.2
    assert set(values[200:]) == {0.2}


def test_a_power_of_one_is_a_straight_line():
    line, power = noise.LinearDecay(end=0.3), noise.PolynomialDecay(end=0.3, power=1.0, period=1000, per="step")
    assert shape(line) == pytest.approx(shape(power), rel=1e-12)


def test_the_variance_falls_geometrically():
    values = shape(noise.GeometricDecay(factor=0.99), steps=400)
    assert all(later**2 / earlier**2 == pytest.approx(0.99, rel=1e-9) for earlier, later in itertools.pairwise(values))


LONG = [
    noise.TimeDecay(rate=1e300),
    noise.ExponentialDecay(rate=1e300, per="step"),
    noise.StepDecay(factor=1e-300, period=1),
    noise.PolynomialDecay(end=0.001, power=1e300, period=1),
    noise.GeometricDecay(factor=1e-300, minimum=0.001),
    noise.LinearDecay(end=0.001),
    noise.GrowingMu(ratio=1000.0),
    noise.InfluenceWeighted(contraction=0.0),
    noise.InfluenceWeighted(contraction=1e-300, span=1000.0),
    noise.PrivacyUtility("strongly convex", 2),
    noise.PrivacyUtility(),
]


@pytest.mark.parametrize("strategy", LONG, ids=lambda strategy: type(strategy).__name__)
def test_always_positive_and_finite(strategy):
    """In a million steps with the most extreme parameters no multiplier vanishes, and none is a thousand times another."""
    steps = 1_000_000
    values = [strategy.relative(Context(step, steps, 0.3)) for step in (1, 2, 3, 4, 1000, steps // 2, steps - 1, steps)]
    assert all(type(value) is float and 0 < value < math.inf for value in values)
    assert 1 < max(values) / min(values) <= 1000 * (1 + 1e-9)


@given(st.floats(1e-3, 1), st.floats(0.01, 10))
def test_the_floor(minimum, rate):
    values = shape(noise.ExponentialDecay(rate=rate, minimum=minimum), steps=300)
    assert values == [max(math.exp(-rate * (t // 10)), minimum) for t in range(300)]


@pytest.mark.parametrize(
    ("name", "epochs"), [("constant", 100), ("time", 38), ("exponential", 71), ("step", 31), ("polynomial", 44)]
)
def test_epochs_affordable_under_zcdp(name, epochs):
    """With published values, priced as published, a run of ρ = 0.78125 (100 epochs at σ = 8) keeps so many whole epochs."""
    budget = Budget(epsilon=zcdp_epsilon(0.78125, 1e-5) * (1 + 1e-12), delta=1e-5, unit=Record())
    sampling = Sampling(10_000, 0.1, 150 * 10)
    plan = make_plan(budget, sampling, clip.Fixed(1.0), PUBLISHED[name], DisjointEpochsAccountant())
    assert plan.steps == 10 * epochs
    assert plan.multipliers[0] == PUBLISHED[name].multiplier


def test_tcdp_in_closed_form():
    """ρ = 13s²/(2σ₀²)·(R^−T − 1)/(R^−1 − 1) for the schedule's own multipliers, and 13s²T/(2σ₀²) as R goes to 1."""
    rate, start, steps, delta = 0.01, 10.0, 500, 1e-5

    def rho(factor):
        strategy = noise.GeometricDecay(factor=factor, multiplier=start)
        events = {Event(rate, start * strategy.relative(Context(t, steps, rate))): 1 for t in range(1, steps + 1)}
        epsilon = TruncatedConcentratedAccountant().epsilon(events, delta)
        assert epsilon > RenyiAccountant("classic").epsilon(events, delta)
        return (math.sqrt(-math.log(delta) + epsilon) - math.sqrt(-math.log(delta))) ** 2

    first = 13 * rate**2 / (2 * start**2)
    assert rho(0.999) == pytest.approx(first * (0.999**-steps - 1) / (1 / 0.999 - 1), rel=1e-6)
    assert rho(1 - 1e-9) == pytest.approx(first * steps, rel=1e-6)


@pytest.mark.parametrize(("ratio", "start"), [(1.0, 0.82260), (2.0, 0.54524), (1 / 0.3, 0.37539), (10.0, 0.14929)])
def test_growing_mu_as_du_plans_it(ratio, start):
    """Du's μ₀, z_T/z_1 = ρ^(−(T−1)/T), and p²·Σ(e^(μ_t²) − 1) the same for every ρ, if the extended central limit sets the price."""
    rate, steps, epsilon, delta = 256 / 60_000, 4687, 1.2, 1 / 600_000
    plan = make_plan(
        Budget(epsilon=epsilon, delta=delta, unit=Record()),
        Sampling(60_000, rate, steps),
        clip.Fixed(1.0),
        noise.GrowingMu(ratio=ratio),
        CentralLimitAccountant(),
    )
    assert plan.multipliers[-1] / plan.multipliers[0] == pytest.approx(ratio ** -((steps - 1) / steps), rel=1e-12)
    assert 1 / plan.multipliers[0] == pytest.approx(start * ratio ** (1 / steps), rel=2e-3)
    spent = math.fsum(math.expm1(multiplier**-2) for multiplier in plan.multipliers)
    assert spent == pytest.approx(steps * math.expm1(0.82260**2), rel=4e-3)
