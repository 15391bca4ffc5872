"""Fay et al.: the optimum by numbers, and the bounds from which the shapes come."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from apportion import InvalidArgument, noise
from apportion.strategies.context import Context


def variances(strategy, steps):
    return [strategy.relative(Context(step, steps, 0.1)) ** 2 for step in range(1, steps + 1)]


def gain(step, deviation, norm, dimension, smoothness):
    return step * norm**2 - smoothness * step**2 / 2 * (norm**2 + dimension * deviation**2)


@pytest.mark.parametrize(("norm", "dimension", "smoothness"), [(1.0, 10, 1.0), (0.3, 1000, 5.0), (40.0, 7, 0.2)])
def test_the_noise_that_buys_progress_most_cheaply(norm, dimension, smoothness):
    """Minimising (1/σ)/max_η U numerically gives the closed form, in units of C/B."""

    def best_step(deviation):
        found = minimize_scalar(
            lambda step: -gain(step, deviation, norm, dimension, smoothness),
            bounds=(0, 2 / smoothness),
            method="bounded",
        )
        return found.x, -found.fun

    def cost(logarithm):
        deviation = math.exp(logarithm)
        return 1 / deviation / best_step(deviation)[1]

    middle = math.log(norm)
    found = minimize_scalar(cost, bounds=(middle - 8, middle + 4), method="bounded", options={"xatol": 1e-9})
    deviation = math.exp(found.x)
    assert deviation == pytest.approx(norm / math.sqrt(dimension), rel=1e-3)
    step, progress = best_step(deviation)
    assert step == pytest.approx(1 / (2 * smoothness), rel=1e-3)
    assert progress == pytest.approx(norm**2 / (4 * smoothness), rel=1e-3)
    multiplier = noise.PrivacyUtility.published_multiplier(
        norm, dimension=dimension, expected_batch_size=250.0, threshold=2.0
    )
    assert multiplier == pytest.approx(deviation * 250 / 2, rel=1e-3)


def test_with_a_cost_of_variance_more_noise_is_always_better():
    costs = [
        1 / deviation**2 / gain(1 / (1 + 10 * deviation**2), deviation, 1.0, 10, 1.0) for deviation in (1, 10, 100)
    ]
    assert costs[0] > costs[1] > costs[2]


@pytest.mark.parametrize("curvatures", [(1.0, 1.0, 1.0), (1.0, 0.5, 0.1), (3.0, 0.3)])
def test_a_quadratic_contracts_as_the_strongly_convex_shape_says(curvatures):
    """F = ½Σ λ_j θ_j² with σ = ‖∇F‖/√d, η = 1/(2M): E[F] after a step, exactly. All λ equal: the bound is attained."""
    largest, smallest = max(curvatures), min(curvatures)
    curvature, point = np.array(curvatures), np.array([2.0, -1.0, 0.7])[: len(curvatures)]
    gradient, step = curvature * point, 1 / (2 * largest)
    variance = gradient @ gradient / len(curvatures)
    before = 0.5 * curvature @ point**2
    after = 0.5 * curvature @ ((point - step * gradient) ** 2 + step**2 * variance)
    strategy = noise.PrivacyUtility("strongly convex", 2 * largest / smallest)
    first, second = variances(strategy, 2)
    assert after / before <= second / first * (1 + 1e-12)
    if largest == smallest:
        assert after / before == pytest.approx(second / first, rel=1e-12)


def test_the_convex_shape_bounds_the_slowest_progress():
    """Δ ← Δ − Δ²/(4M·D²), the least that a step gains, stays below Δ₀/(1 + t/h), and not far below."""
    horizon, gap, gaps = 8.0, 1.0, []
    for _ in range(1000):
        gaps.append(gap)
        gap -= gap**2 / horizon
    bounds = variances(noise.PrivacyUtility("convex", horizon), 1000)
    assert all(one <= other * (1 + 1e-12) for one, other in zip(gaps, bounds, strict=True))
    assert gaps[-1] > 0.9 * bounds[-1]


def test_the_non_convex_shape_is_the_harmonic_one():
    """‖∇F‖² = 4MΔ₀/T at each of T steps uses up all of Δ₀: the bound on the smallest norm after t steps is attained."""
    assert variances(noise.PrivacyUtility(), 50) == pytest.approx([1 / t for t in range(1, 51)], rel=1e-12)


@pytest.mark.parametrize("name", ["gradient_norm", "dimension", "expected_batch_size", "threshold"])
def test_the_published_multiplier_checks_its_arguments(name):
    good = {"gradient_norm": 1.0, "dimension": 10, "expected_batch_size": 100.0, "threshold": 1.0}
    with pytest.raises(InvalidArgument, match=f"^{name}=-1"):
        noise.PrivacyUtility.published_multiplier(**good | {name: -1})
