"""Prices against published and closed-form values."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from apportion.accounting.accountant import PrivacyLossAccountant, count_events
from apportion.accounting.calibration import calibrate, longest_affordable
from apportion.errors import InvalidArgument
from apportion.event import Event

ACCOUNTANT = PrivacyLossAccountant()


def gaussian_epsilon(mu, delta):
    """δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2), inverted."""
    return brentq(lambda e: norm.cdf(-e / mu + mu / 2) - math.exp(e) * norm.cdf(-e / mu - mu / 2) - delta, 0, 100)


@pytest.mark.parametrize(
    ("rate", "multiplier", "steps", "delta", "epsilon"),
    [
        (0.01, 4.0, 10_000, 1e-5, 0.947),
        (256 / 60_000, 1.2, 5_000, 1e-5, 1.1809),
        (1.0, 1.0, 1, 1e-5, 4.3772),
        (1.0, 2.0, 1, 1e-5, 1.9931),
    ],
)
def test_known_prices(rate, multiplier, steps, delta, epsilon):
    assert ACCOUNTANT.epsilon({Event(rate, multiplier): steps}, delta) == pytest.approx(epsilon, rel=2e-3)


@pytest.mark.parametrize(("multipliers", "delta"), [([2.0] * 7, 1e-6), ([1.0, 3.0, 5.0], 1e-5)])
def test_without_sampling_multipliers_add_in_closed_form(multipliers, delta):
    mu = math.sqrt(sum(z**-2 for z in multipliers))
    exact = gaussian_epsilon(mu, delta)
    found = ACCOUNTANT.epsilon(count_events(Event(1.0, z) for z in multipliers), delta)
    assert exact <= found <= exact * 1.001


def test_nothing_costs_nothing_and_order_does_not_matter():
    assert ACCOUNTANT.epsilon({}, 1e-5) == 0.0
    events = [Event(0.1, 2.0), Event(0.2, 3.0)] * 3
    assert ACCOUNTANT.epsilon(count_events(events), 1e-5) == ACCOUNTANT.epsilon(count_events(reversed(events)), 1e-5)


@pytest.mark.parametrize(("rate", "multiplier", "steps"), [(0.5, 1.0, 10**9), (0.01, 0.05, 10**6), (0.1, 0.01, 10**6)])
def test_a_price_beyond_all_use_is_infinite_at_once(rate, multiplier, steps):
    assert ACCOUNTANT.epsilon({Event(rate, multiplier): steps}, 1e-5) == math.inf


@settings(max_examples=4, deadline=None)
@given(st.floats(0.01, 0.5), st.floats(1.0, 4.0), st.integers(1, 50))
def test_more_steps_less_noise_and_more_sampling_cost_more(rate, multiplier, steps):
    price = ACCOUNTANT.epsilon({Event(rate, multiplier): steps}, 1e-5)
    assert price <= ACCOUNTANT.epsilon({Event(rate, multiplier): steps + 5}, 1e-5)
    assert price <= ACCOUNTANT.epsilon({Event(rate, 0.8 * multiplier): steps}, 1e-5)
    assert price <= ACCOUNTANT.epsilon({Event(min(1.0, 1.5 * rate), multiplier): steps}, 1e-5)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_a_delta_outside_the_unit_interval_is_refused(delta):
    with pytest.raises(InvalidArgument, match="delta"):
        ACCOUNTANT.epsilon({Event(0.1, 1.0): 1}, delta)


@pytest.mark.parametrize(
    ("rate", "shape", "epsilon"),
    [
        (0.2, [1.0] * 200, 3.0),
        (256 / 60_000, [1.0] * 1000, 0.4),
        (0.1, [1.0] * 50, 20.0),
        (1.0, [1.0] * 5, 1.0),
        (0.1, [2.0] * 20 + [1.0] * 20, 1.0),
    ],
)
def test_calibration_ends_just_inside_the_budget(rate, shape, epsilon):
    scale = calibrate(ACCOUNTANT, shape, sample_rate=rate, epsilon=epsilon, delta=1e-5)
    spent = ACCOUNTANT.epsilon(count_events(Event(rate, scale * r) for r in shape), 1e-5)
    assert 0.998 * epsilon <= spent <= epsilon


@pytest.mark.parametrize(("rate", "steps", "epsilon"), [(1.0, 10_000, 1e-9), (0.5, 3, 1e6)])
def test_an_unreachable_target_says_what_is_reachable(rate, steps, epsilon):
    with pytest.raises(InvalidArgument, match="the closest is"):
        calibrate(ACCOUNTANT, [1.0] * steps, sample_rate=rate, epsilon=epsilon, delta=1e-5)


def test_the_longest_affordable_prefix():
    events = [Event(0.1, 1.0)] * 100
    longest = longest_affordable(ACCOUNTANT, events, epsilon=2.0, delta=1e-5)
    assert 0 < longest < 100
    assert ACCOUNTANT.epsilon(count_events(events[:longest]), 1e-5) <= 2.0
    assert ACCOUNTANT.epsilon(count_events(events[: longest + 1]), 1e-5) > 2.0
    assert longest_affordable(ACCOUNTANT, events, epsilon=100.0, delta=1e-5) == 100
    assert longest_affordable(ACCOUNTANT, events, epsilon=0.01, delta=1e-5) == 0


@pytest.mark.parametrize("shape", [[1e-200, 1.0], [1.0, 1e160], [1e-9, 1.0], [0.0, 1.0], [math.nan, 1.0], [-1.0, 1.0]])
def test_a_shape_that_no_scale_fits_is_refused_in_words(shape):
    with pytest.raises(InvalidArgument, match=r"^noise='multipliers from .*no scale brings them all between"):
        calibrate(PrivacyLossAccountant(), shape, sample_rate=0.01, epsilon=1.0, delta=1e-5)
