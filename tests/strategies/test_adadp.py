"""adadp: one step against two half steps; the learning rate follows their difference."""

import math

import pytest
import torch

import apportion as ap
from apportion.releases import ClippedSum
from apportion.request import Released, Request

REQUEST = Request(0.1, 1.0, 50.0, (ClippedSum(1.0),))


def draw(update, state, weights, gradient):
    """One draw with this gradient. Returns the state and the weights to go on with."""
    released = Released(REQUEST, {name: torch.as_tensor(gradient[name]) for name in weights})
    state, moved = update.move(state, released, weights)
    return state, weights if moved is None else dict(moved)


def adaptive_step(update, state, weights, gradient_at):
    for _ in range(2):
        state, weights = draw(update, state, weights, {name: gradient_at(value) for name, value in weights.items()})
    return state, weights


def begin(update, weights, rate):
    weights = {"w": torch.tensor(weights, dtype=torch.float64)}
    return update.init(weights, rate), weights


def test_two_half_steps_are_taken_if_they_agree_with_one():
    update = ap.update.AdaDP(tolerance=1.0)
    state, weights = begin(update, [4.0, -2.0], 0.5)
    state, half = draw(update, state, weights, {"w": [1.0, 1.0]})
    assert half["w"].tolist() == [3.75, -2.25]
    assert update.learning_rate(state) == 0.5, "η moves after the second draw only"
    state, two = draw(update, state, half, {"w": [3.0, 1.0]})
    assert two["w"].tolist() == [3.0, -2.5]
    error = 0.5 / 3.5  # θ_full = (3.5, −2.5)
    assert update.learning_rate(state) == pytest.approx(0.5 * min(math.sqrt(1 / error), 1.1))


@pytest.mark.parametrize(("exponent", "factor"), [(0.5, math.sqrt(0.9)), (1.0, 0.9)])
def test_the_exponent_says_how_fast_the_rate_follows(exponent, factor):
    """err = 0.5/0.45·τ·… is set to τ/0.9, inside of the bounds for both exponents."""
    update = ap.update.AdaDP(tolerance=0.45, exponent=exponent, least_factor=0.5)
    state, weights = begin(update, [0.0], 1.0)
    state, weights = draw(update, state, weights, {"w": [0.0]})
    state, weights = draw(update, state, weights, {"w": [1.0]})  # err = ½/max(1, 0)
    assert update.learning_rate(state) == pytest.approx(factor)
    assert weights["w"].tolist() == [0.0], "rejected"


def test_an_error_of_just_the_tolerance_is_accepted():
    update = ap.update.AdaDP(tolerance=0.5)
    state, weights = begin(update, [0.0], 1.0)
    state, weights = draw(update, state, weights, {"w": [0.0]})
    state, weights = draw(update, state, weights, {"w": [1.0]})
    assert weights["w"].tolist() == [-0.5]
    assert update.learning_rate(state) == 1.0


def test_the_error_is_relative_where_weights_are_large_and_one_for_all_parameters():
    update = ap.update.AdaDP(tolerance=1e-3, exponent=1.0, least_factor=1e-6)
    weights = {"a": torch.tensor([10.0]).double(), "b": torch.tensor([0.1]).double()}
    state = update.init(weights, 1.0)
    state, weights = draw(update, state, weights, {"a": [0.0], "b": [0.0]})
    state, weights = draw(update, state, weights, {"a": [6.0], "b": [0.8]})
    assert update.learning_rate(state) == pytest.approx(1e-3 / math.hypot(3.0 / 10.0, 0.4))


@pytest.mark.parametrize("exponent", [0.5, 1.0])
def test_on_a_noise_free_quadratic_the_error_converges_to_the_tolerance(exponent):
    """θ_full = (1 − u)θ and θ_two = (1 − u/2)²θ with u = ηλ: err = u²/4/(1 − u) while |θ_full| ≥ 1, whatever θ is.

    Near its fixed point err grows like u^2.9: with the exponent 1 the rate corrects itself too far and swings, within its factors.
    """
    update = ap.update.AdaDP(tolerance=0.1, exponent=exponent)
    curvature = 3.0
    state, weights = begin(update, [1e60], 1e-3)
    for _ in range(150):
        state, weights = adaptive_step(update, state, weights, lambda value: curvature * value)
    assert weights["w"].abs() > 1e3
    product = curvature * update.learning_rate(state)
    fixed_point = (-0.4 + math.sqrt(0.16 + 1.6)) / 2
    assert product == pytest.approx(fixed_point, rel=1e-6 if exponent == 0.5 else 0.1)
    assert product**2 / 4 / (1 - product) == pytest.approx(0.1, rel=1e-5 if exponent == 0.5 else 0.3)


def test_a_rejected_step_leaves_the_weights_bit_for_bit():
    """0.1 + 0.2 − 0.2 is not 0.1 in float32: taking the half step back would show."""
    update = ap.update.AdaDP(tolerance=1e-9)
    weights = {"w": torch.tensor([0.1, -0.0, 1e-40, 3e8])}
    before, state = weights["w"].clone(), update.init(weights, 0.3)
    state, half = draw(update, state, weights, {"w": [0.7, 1.0, 1.0, 1.0]})
    assert not torch.equal(half["w"], before)
    state, weights = draw(update, state, half, {"w": [-0.2, 2.0, 1.0, 5.0]})
    assert weights["w"].view(torch.int32).tolist() == before.view(torch.int32).tolist()
    assert update.learning_rate(state) == pytest.approx(0.3 * 0.9)
    assert state["start"] is None, "the next draw begins a step"


def test_the_start_of_a_step_is_not_a_view_of_the_weights():
    update = ap.update.AdaDP(tolerance=1e-9)
    weights = {"w": torch.tensor([1.0])}
    state = update.init(weights, 0.5)
    state, half = draw(update, state, weights, {"w": [1.0]})
    weights["w"].copy_(half["w"])  # as the session does it, in place
    _, back = draw(update, state, weights, {"w": [5.0]})
    assert back["w"].tolist() == [1.0]


def test_without_any_error_the_rate_grows_as_far_as_it_may():
    update = ap.update.AdaDP(most_factor=1.25)
    state, weights = begin(update, [1.0], 0.1)
    state, weights = adaptive_step(update, state, weights, lambda value: torch.ones_like(value))
    assert update.learning_rate(state) == pytest.approx(0.125)


@pytest.mark.parametrize("wild", [math.inf, math.nan, 1e308])
@pytest.mark.parametrize("first", [True, False])
def test_what_is_not_finite_is_rejected_and_lowers_the_rate(wild, first):
    update = ap.update.AdaDP()
    state, weights = begin(update, [1.0, 2.0], 4.0)
    for gradient in ([wild, 0.0], [0.0, 0.0]) if first else ([0.0, 0.0], [wild, 0.0]):
        state, weights = draw(update, state, weights, {"w": torch.tensor(gradient, dtype=torch.float64)})
    assert weights["w"].tolist() == [1.0, 2.0]
    assert update.learning_rate(state) == pytest.approx(3.6)


def test_the_rate_stays_within_its_bounds():
    update = ap.update.AdaDP(least_rate=0.5, most_rate=1.0)
    assert update.learning_rate(update.init({}, 7.0)) == 1.0
    assert update.learning_rate(update.init({}, 0.1)) == 0.5
    state, weights = begin(update, [1.0], 0.5)
    state, _ = adaptive_step(update, state, weights, lambda value: torch.full_like(value, math.nan))
    assert update.learning_rate(state) == 0.5


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"tolerance": 0.0}, "tolerance"),
        ({"tolerance": -1.0}, "tolerance"),
        ({"exponent": 0.0}, "exponent"),
        ({"exponent": 1.5}, "exponent"),
        ({"least_factor": 1.0}, "least_factor"),
        ({"most_factor": 1.0}, "least_factor"),
        ({"least_factor": 1.2, "most_factor": 1.5}, "least_factor"),
        ({"least_factor": 0.0}, "least_factor"),
        ({"least_rate": 0.0}, "least_rate"),
        ({"least_rate": 2.0, "most_rate": 1.0}, "least_rate"),
    ],
)
def test_bad_input_is_named(wrong, named):
    with pytest.raises(ap.InvalidArgument, match=rf"^update\.{named}"):
        ap.update.AdaDP(**wrong)


def test_a_plan_has_two_draws_for_every_step(budget):
    def steps(noise=None, asked=11):
        recipe = ap.Recipe(update=ap.update.AdaDP(), noise=noise)
        return ap.plan(recipe, budget=budget, population=1000, sample_rate=0.2, steps=asked).steps

    assert steps() == 10
    affordable = ap.plan(
        ap.Recipe(noise=ap.noise.Constant(1.0)), budget=budget, population=1000, sample_rate=0.2, steps=500
    ).steps
    odd = next(
        multiplier
        for multiplier in (1.0, 1.02, 1.04, 1.06, 1.08, 1.1, 1.12)
        if ap.plan(
            ap.Recipe(noise=ap.noise.Constant(multiplier)), budget=budget, population=1000, sample_rate=0.2, steps=500
        ).steps
        % 2
    )
    assert affordable < 500
    assert steps(ap.noise.Constant(odd), 500) % 2 == 0
    with pytest.raises(ap.InvalidArgument, match=r"^steps=1: AdaDP takes 2 draws"):
        steps(asked=1)
