"""Rényi accounting against published multipliers, exact sums and the table of growing schedules."""

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant, compute_epsilon

from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.accounting.central_limit import growing_mu
from apportion.accounting.renyi import ORDERS, RenyiAccountant, renyi_curve, renyi_prices, renyi_sum
from apportion.errors import InvalidArgument
from apportion.event import Event

IMPROVED, CLASSIC, PLD = RenyiAccountant(), RenyiAccountant("classic"), PrivacyLossAccountant()
DU = 256 / 60_000


def growing(steps, inverse_growth, epsilon, delta):
    """Du et al.: μ_t = μ₀·ρ^{t/T}."""
    growth = 1 / inverse_growth
    start = growing_mu(sample_rate=DU, steps=steps, growth=growth, epsilon=epsilon, delta=delta)
    if growth == 1:
        return {Event(DU, 1 / start): steps}
    return {Event(DU, 1 / (start * growth ** (t / steps))): 1 for t in range(1, steps + 1)}


@pytest.mark.parametrize(
    ("accountant", "rate", "multiplier", "steps", "epsilon"),
    [
        (IMPROVED, 0.01, 4.0, 10_000, 1.035),
        (CLASSIC, 0.01, 4.0, 10_000, 1.26),  # as published with the moments accountant
        (CLASSIC, 512 / 60_000, 1.23, 40 * 60_000 // 512, 2.995),
        (IMPROVED, 512 / 60_000, 1.23, 40 * 60_000 // 512, 2.58),
        (CLASSIC, 1024 / 50_000, 1.54, 30 * 50_000 // 1024, 3.03),
        (IMPROVED, 1024 / 50_000, 1.54, 30 * 50_000 // 1024, 2.61),
    ],
)
def test_published_prices(accountant, rate, multiplier, steps, epsilon):
    assert accountant.epsilon({Event(rate, multiplier): steps}, 1e-5) == pytest.approx(epsilon, rel=3e-3)


@pytest.mark.parametrize(
    ("rate", "steps", "multipliers"),
    [
        (512 / 60_000, 3_515, {1: 2.195, 2: 1.313, 3: 1.033}),
        (512 / 60_000, 9_375, {1: 3.436, 2: 1.925, 3: 1.428}),
        (1024 / 50_000, 1_464, {1: 3.298, 2: 1.869, 3: 1.400, 10: 0.762, 20: 0.593}),
    ],
)
def test_multipliers_that_reach_a_budget(rate, steps, multipliers):
    for epsilon, multiplier in multipliers.items():
        assert IMPROVED.epsilon({Event(rate, multiplier): steps}, 1e-5) == pytest.approx(epsilon, rel=4e-3)


# batches of 1,024 of 60,000: ε, the multipliers that RDP and PLD find for it, and what the multiplier of RDP really costs
LIN = {
    879: [(1.2, 1.883, 1.750, 1.09), (2.93, 1.064, 1.006, 2.63), (4.5, 0.875, 0.830, 3.97)],
    2344: [(1.2, 2.877, 2.660, 1.09), (2.93, 1.442, 1.358, 2.68), (4.5, 1.107, 1.052, 4.11)],
    3516: [(1.2, 3.474, 3.207, 1.09), (2.93, 1.686, 1.583, 2.68), (4.5, 1.261, 1.195, 4.13)],
    5859: [(1.2, 4.431, 4.087, 1.09), (2.93, 2.088, 1.954, 2.69), (4.5, 1.520, 1.436, 4.14)],
}


@pytest.mark.parametrize("steps", LIN)
def test_lin_multipliers_by_rdp_and_by_pld(steps):
    for epsilon, by_renyi, by_pld, true in LIN[steps]:
        rate, delta = 1024 / 60_000, 1 / 60_000
        assert IMPROVED.epsilon({Event(rate, by_renyi): steps}, delta) == pytest.approx(epsilon, rel=5e-3)
        assert PLD.epsilon({Event(rate, by_pld): steps}, delta) == pytest.approx(epsilon, rel=5e-3)
        assert PLD.epsilon({Event(rate, by_renyi): steps}, delta) == pytest.approx(true, rel=8e-3)


QUICK = [(5000, 600_000, 1.2, 1.0, 1.3521)]
LONG = [
    (5000, 600_000, 1.2, 0.3, 2.0370),
    (5000, 600_000, 1.2, 0.5, 1.6376),
    (5000, 600_000, 0.4, 1.0, 0.4396),
    (5000, 600_000, 0.4, 0.5, 0.4406),
    (5000, 600_000, 0.4, 0.3, 0.4462),
    (5000, 600_000, 0.4, 0.1, 0.5614),
    (5000, 600_000, 0.6, 1.0, 0.6620),
    (5000, 600_000, 0.6, 0.3, 0.7468),
    (5000, 600_000, 0.6, 0.1, 1.0478),
    (5000, 600_000, 1.2, 0.8, 1.3887),
    (5000, 600_000, 1.2, 0.6, 1.5195),
    (5000, 600_000, 1.2, 0.4, 1.8042),
    (5000, 600_000, 1.2, 0.1, 2.9060),
    (5000, 600_000, 2.0, 1.0, 2.4729),
    (5000, 600_000, 2.0, 0.3, 4.0492),
    (5000, 600_000, 2.0, 0.1, 5.2829),
    (4687, 60_000, 0.4, 0.8, 0.4479),
    (4687, 60_000, 1.2, 1.0, 1.3866),
    (4687, 60_000, 1.2, 0.3, 2.1115),
]


def check_growing(row):
    steps, inverse_delta, planned, inverse_growth, epsilon = row
    found = IMPROVED.epsilon(growing(steps, inverse_growth, planned, 1 / inverse_delta), 1 / inverse_delta)
    assert found == pytest.approx(epsilon, rel=2e-3)


@pytest.mark.parametrize("row", QUICK, ids=str)
def test_growing_schedules(row):
    check_growing(row)


@pytest.mark.slow
def test_all_growing_schedules():
    for row in LONG:  # in one test: neighbouring rows share curves
        check_growing(row)


def test_interpolation_bounds_the_exact_sum_from_above_and_closely():
    multipliers = np.geomspace(0.7, 0.73, 45)
    events = {Event(0.01, float(z)): 3 for z in multipliers}
    steps = [PoissonSampledDpEvent(0.01, GaussianDpEvent(z)) for z in multipliers]
    exact = np.sum([3 * RdpAccountant(ORDERS).compose(step).rdp for step in steps], axis=0)
    bound = renyi_sum(events)
    finite = np.isfinite(exact)
    assert (bound[finite] >= exact[finite]).all()
    price = compute_epsilon(ORDERS, exact, 1e-5)[0]
    assert price < IMPROVED.epsilon(events, 1e-5) < 1.002 * price
    assert not np.array_equal(bound, exact), "nothing was interpolated"


def test_the_curve_without_sampling_is_in_closed_form():
    assert renyi_curve(Event(1.0, 2.0), [2.0, 3.5]) == pytest.approx([2 / 8, 3.5 / 8], rel=1e-12)


def test_a_rounded_curve_is_never_negative():
    assert (renyi_curve(Event(1e-9, 1e3)) > 0).all()


def test_curves_cannot_be_changed_by_a_reader():
    renyi_curve(Event(0.1, 2.0))[:] = 0
    assert (renyi_curve(Event(0.1, 2.0)) > 0).all()


def test_rates_may_differ_and_nothing_costs_nothing():
    together = IMPROVED.epsilon({Event(0.01, 1.0): 100, Event(0.02, 1.5): 100}, 1e-5)
    alone = [IMPROVED.epsilon({Event(0.01, 1.0): 100}, 1e-5), IMPROVED.epsilon({Event(0.02, 1.5): 100}, 1e-5)]
    assert max(alone) < together < sum(alone)
    assert IMPROVED.epsilon({}, 1e-5) == CLASSIC.epsilon({Event(0.1, 1.0): 0}, 1e-5) == 0.0


@pytest.mark.parametrize("delta", [0.0, 1.0, math.nan])
def test_bad_values_are_refused(delta):
    with pytest.raises(InvalidArgument, match="delta"):
        IMPROVED.epsilon({Event(0.1, 1.0): 1}, delta)
    with pytest.raises(InvalidArgument, match="Did you mean 'classic'"):
        RenyiAccountant("clasic")


@pytest.mark.parametrize(
    ("multiplier", "steps", "delta"), [(0.4, 3, 1e-6), (1.3, 30, 1e-5), (8.0, 1000, 1e-9), (200.0, 3, 0.1)]
)
def test_orders_that_are_left_out_cannot_be_the_best(multiplier, steps, delta):
    events, orders = {Event(0.1, multiplier): steps}, np.array(ORDERS)
    added = np.log((orders - 1) / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    exact, found = renyi_sum(events) + added, renyi_prices(events, delta)
    assert np.argmin(found) == np.argmin(exact)
    assert np.min(found) == np.min(exact)
    kept = np.isfinite(found)
    assert np.array_equal(found[kept], exact[kept])
    assert not kept.all()


def test_an_order_costs_the_same_in_any_company():
    event = Event(0.03, 1.7)
    some = renyi_curve(event, (2.5, 14.0))  # the first to ask
    assert np.array_equal(some, renyi_curve(event)[[ORDERS.index(2.5), ORDERS.index(14.0)]])
    assert np.array_equal(some[::-1], renyi_curve(event, (14.0, 2.5)))
