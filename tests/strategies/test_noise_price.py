"""Every noise schedule is calibrated to the true ε: dp_accounting, which shares no code with this library, says the same."""

import dataclasses

import pytest

from apportion import clip, noise
from apportion.accounting.accountant import PrivacyLossAccountant, count_events
from apportion.accounting.verification import independent_price
from apportion.budget import Budget, Record
from apportion.event import Event
from apportion.sampling import Sampling
from apportion.strategies.context import Context
from runs import make_plan

BUDGET = Budget(epsilon=2.0, delta=1e-5, unit=Record())
SAMPLING = Sampling(1000, 0.1, 12)
SCHEDULES = [
    noise.Constant(),
    noise.GrowingMu(ratio=3.0),
    noise.TimeDecay(rate=0.3, per="step"),
    noise.ExponentialDecay(rate=0.5),
    noise.StepDecay(factor=0.6, period=4, per="step"),
    noise.PolynomialDecay(end=0.3, power=2.0, period=8, per="step"),
    noise.GeometricDecay(factor=0.9),
    noise.LinearDecay(end=0.4),
    noise.InfluenceWeighted(contraction=0.8),
    noise.InfluenceWeighted(weights=[1.0, 5.0, 2.0] * 4),
    noise.PrivacyUtility(),
    noise.PrivacyUtility("convex", 8),
    noise.PrivacyUtility("strongly convex", 10),
]
every = pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: type(schedule).__name__)


def test_every_schedule_is_here():
    kinds = {getattr(noise, name) for name in noise.__all__} - {noise.NoiseSchedule}
    built_in = {kind for kind in kinds if hasattr(kind, "relative")}  # the others follow what was released
    assert built_in == {type(schedule) for schedule in SCHEDULES}


@every
def test_the_budget_is_spent_and_not_exceeded(schedule):
    plan = make_plan(BUDGET, SAMPLING, clip.Fixed(1.0), schedule)
    price = independent_price(count_events(plan.tokens), BUDGET.delta)
    assert plan.steps == SAMPLING.steps
    assert not price.rounded
    assert 0.998 * BUDGET.epsilon <= price.highest <= BUDGET.epsilon
    shape = [schedule.relative(Context(step, plan.steps, SAMPLING.sample_rate)) for step in range(1, plan.steps + 1)]
    scale = plan.multipliers[0] / shape[0]
    assert list(plan.multipliers) == pytest.approx([scale * relative for relative in shape], rel=1e-12)


@every
def test_a_given_multiplier_is_used_as_it_is_and_priced(schedule):
    """With a tenth less noise than the budget allows, the run keeps the steps that fit, and one more would not."""
    accountant = PrivacyLossAccountant()
    first = Context(1, SAMPLING.steps, SAMPLING.sample_rate)
    solved = make_plan(BUDGET, SAMPLING, clip.Fixed(1.0), schedule, accountant).multipliers
    raw = dataclasses.replace(schedule, multiplier=0.9 * solved[0] / schedule.relative(first))
    plan = make_plan(BUDGET, SAMPLING, clip.Fixed(1.0), raw, accountant)
    assert 0 < plan.steps < SAMPLING.steps
    published = [0.9 * multiplier for multiplier in solved]
    assert list(plan.multipliers) == pytest.approx(published[: plan.steps], rel=1e-12)
    events = [Event(SAMPLING.sample_rate, multiplier) for multiplier in published[: plan.steps + 1]]
    assert accountant.epsilon(count_events(events), BUDGET.delta) > BUDGET.epsilon
    assert plan.epsilon == pytest.approx(accountant.epsilon(count_events(events[:-1]), BUDGET.delta), rel=1e-6)
    assert plan.epsilon <= BUDGET.epsilon
