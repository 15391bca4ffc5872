"""Advanced composition."""

import math

import pytest

from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.accounting.advanced import AdvancedCompositionAccountant, amplified_epsilon
from apportion.accounting.gaussian import gaussian_delta, gaussian_epsilon
from apportion.errors import InvalidArgument
from apportion.event import Event

ADVANCED = AdvancedCompositionAccountant()


def test_the_formula_for_equal_steps():
    """Written out once more, from ε₀ to the total."""
    rate, multiplier, steps, delta = 0.01, 4.0, 10_000, 1e-5
    unsampled = gaussian_epsilon(1 / multiplier, delta / (2 * steps) / rate)
    assert gaussian_delta(1 / multiplier, unsampled) == pytest.approx(delta / (2 * steps) / rate, rel=1e-6)
    one = math.log(1 + rate * (math.exp(unsampled) - 1))
    drift = steps * one * (math.exp(one) - 1) / (math.exp(one) + 1)
    expected = drift + one * math.sqrt(2 * steps * math.log(2 / delta))
    assert ADVANCED.epsilon({Event(rate, multiplier): steps}, delta) == pytest.approx(expected, rel=1e-9)


def test_one_step_costs_what_it_costs():
    one = ADVANCED.epsilon({Event(0.01, 4.0): 1}, 1e-5)
    assert one == pytest.approx(amplified_epsilon(Event(0.01, 4.0), 0.5e-5), rel=1e-12)


@pytest.mark.parametrize(
    "events",
    [
        {Event(0.01, 4.0): 10_000},
        {Event(1.0, 20.0): 30},
        {Event(0.01, 4.0): 100, Event(0.02, 2.0): 50},
        {Event(0.5, 1.0): 3},
    ],
    ids=str,
)
def test_it_lies_above_the_tight_price(events):
    assert ADVANCED.epsilon(events, 1e-5) > PrivacyLossAccountant().epsilon(events, 1e-5)


def test_splitting_equal_steps_changes_nothing():
    together = ADVANCED.epsilon({Event(0.01, 4.0): 300}, 1e-5)
    nearly = ADVANCED.epsilon({Event(0.01, 4.0): 150, Event(0.01, 4.0 + 1e-12): 150}, 1e-5)
    assert nearly == pytest.approx(together, rel=1e-9)


def test_edges():
    assert ADVANCED.epsilon({}, 1e-5) == 0.0
    assert math.isfinite(ADVANCED.epsilon({Event(0.01, 0.01): 10}, 1e-5)), "little noise must not overflow"
    assert amplified_epsilon(Event(1e-9, 1.0), 0.1) == 0.0
    with pytest.raises(InvalidArgument, match="delta"):
        ADVANCED.epsilon({Event(0.01, 4.0): 1}, 0.0)
