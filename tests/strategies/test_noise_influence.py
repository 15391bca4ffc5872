"""Hong et al.: the optimal schedule for given influences, and the best number of steps."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion import InvalidArgument, clip, noise
from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.budget import Budget, Record
from apportion.sampling import Sampling
from apportion.strategies.context import Context
from runs import make_plan

TABLE = [2.5319, 2.4661, 2.4019, 2.3395, 2.2787, 2.2195, 2.1618, 2.1056, 2.0508, 1.9975]  # T = 10, γ = 0.9, ρ = 1


def shape(strategy, steps):
    return [strategy.relative(Context(step, steps, 1.0)) for step in range(1, steps + 1)]


def with_rho(shape, rho=1.0):
    """The schedule of this shape with Σ 1/(2σ²) = ρ."""
    scale = math.sqrt(math.fsum(1 / (2 * r**2) for r in shape) / rho)
    return [scale * r for r in shape]


def harm(weights, multipliers):
    return math.fsum(weight * multiplier**2 for weight, multiplier in zip(weights, multipliers, strict=True))


def test_the_published_schedule():
    multipliers = with_rho(shape(noise.InfluenceWeighted(contraction=0.9), 10))
    assert multipliers == pytest.approx(TABLE, abs=6e-5)
    weights = [0.9 ** (10 - t) for t in range(1, 11)]
    assert harm(weights, multipliers) == pytest.approx(31.841, abs=1e-3)
    assert harm(weights, with_rho([1.0] * 10)) == pytest.approx(32.566, abs=1e-3)


def test_its_own_multiplier_is_that_of_the_last_step():
    """One record in a thousand steps at q = 1: the raw value is kept, and the last step has it."""
    plan = make_plan(
        Budget(epsilon=8.0, delta=1e-5, unit=Record()),
        Sampling(1000, 1.0, 10),
        clip.Fixed(1.0),
        noise.InfluenceWeighted(contraction=0.9, multiplier=TABLE[-1]),
        PrivacyLossAccountant(),
    )
    assert list(plan.multipliers) == pytest.approx(TABLE, rel=3e-5)


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=12), st.data())
def test_no_other_schedule_with_the_same_cost_does_less_harm(weights, data):
    best = with_rho(shape(noise.InfluenceWeighted(weights=weights), len(weights)))
    changes = data.draw(st.lists(st.floats(0.5, 2), min_size=len(weights), max_size=len(weights)))
    other = with_rho([change * multiplier for change, multiplier in zip(changes, best, strict=True)])
    assert harm(weights, best) <= harm(weights, other) * (1 + 1e-12)
    assert harm(weights, best) == pytest.approx(math.fsum(map(math.sqrt, weights)) ** 2 / 2, rel=1e-9)


def test_powers_of_the_contraction_are_weights():
    weights = [0.8 ** (20 - t) for t in range(1, 21)]
    by_weights = noise.InfluenceWeighted(weights=[7.0 * weight for weight in weights])
    assert shape(by_weights, 20) == pytest.approx(shape(noise.InfluenceWeighted(contraction=0.8), 20), rel=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 10, 1000])
def test_without_a_guess_the_noise_falls_e_fold(steps):
    values = shape(noise.InfluenceWeighted(), steps)
    assert values[0] == pytest.approx(math.exp(1 - 1 / steps), rel=1e-9)
    assert values[-1] == 1.0


def test_extremes():
    assert shape(noise.InfluenceWeighted(contraction=0.0), 4) == [100.0, 100.0, 100.0, 1.0]
    assert shape(noise.InfluenceWeighted(contraction=1 - 1e-15), 4) == pytest.approx([1.0] * 4, rel=1e-12)
    assert shape(noise.InfluenceWeighted(weights=[5e-324, 1e308, 16e-320]), 3) == [100.0, 1.0, 100.0]
    assert shape(noise.InfluenceWeighted(weights=[16.0, 1.0, 16.0], span=1.5), 3) == [1.0, 1.5, 1.0]


def test_weights_are_for_one_length():
    strategy = noise.InfluenceWeighted(weights=[1.0, 2.0, 3.0])
    with pytest.raises(InvalidArgument, match=r"noise.weights='3 weights': the run has 4 steps"):
        shape(strategy, 4)


PUBLIC = {"rho": 0.05, "dimension": 1000, "threshold": 1.0, "smoothness": 2.0, "population": 10_000, "gap": 0.7}


def bound(contraction, steps, public):
    """ERUB, step by step: γ^T + R′·Σ γ^(T−t)·σ_t² with the optimal σ_t."""
    ratio = public["dimension"] * public["threshold"] ** 2
    ratio /= 2 * public["smoothness"] * public["population"] ** 2 * public["gap"]
    influences = [contraction ** (steps - t) for t in range(1, steps + 1)]
    optimal = with_rho([influence**-0.25 for influence in influences], public["rho"])
    return contraction**steps + ratio * harm(influences, optimal)


@pytest.mark.parametrize(
    ("contraction", "changes"),
    [(0.9, {}), (0.95, {}), (0.9, {"population": 1000}), (0.5, {"dimension": 10}), (0.97, {"threshold": 20.0})],
)
def test_the_best_number_of_steps(contraction, changes):
    public = PUBLIC | changes
    found = noise.InfluenceWeighted(contraction=contraction).choose_steps(**public)
    bounds = {steps: bound(contraction, steps, public) for steps in range(1, 400)}
    assert bounds[found] == pytest.approx(min(bounds.values()), rel=1e-9)
    assert found == min(bounds, key=bounds.get)


def test_the_best_number_of_steps_at_the_extremes():
    assert noise.InfluenceWeighted(contraction=0.0).choose_steps(**PUBLIC) == 1
    assert noise.InfluenceWeighted(contraction=0.9).choose_steps(**PUBLIC | {"threshold": 1e200}) == 1
    assert noise.InfluenceWeighted(contraction=1 - 2**-53).choose_steps(**PUBLIC | {"rho": 1e300}) == 1_000_000


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_each_public_quantity_is_checked(name):
    with pytest.raises(InvalidArgument, match=f"^{name}=0"):
        noise.InfluenceWeighted(contraction=0.9).choose_steps(**PUBLIC | {name: 0})


@pytest.mark.parametrize("strategy", [noise.InfluenceWeighted(), noise.InfluenceWeighted(weights=[1.0])])
def test_choosing_steps_needs_a_contraction(strategy):
    with pytest.raises(InvalidArgument, match="the bound needs the contraction of one step"):
        strategy.choose_steps(**PUBLIC)
