"""Rényi curves, ρ and filters of selections, against the exact divergences of the mechanisms that are executed."""

import math

import numpy as np
import pytest
from scipy.special import logsumexp

from apportion import Budget, BudgetExhausted, InvalidArgument, Record
from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.accounting.renyi import ORDERS, RenyiAccountant, renyi_curve
from apportion.accounting.rules import ConcentratedFilter, GaussianFilter, RenyiFilter, charge, fits
from apportion.event import Choice, Event
from exact_selections import above_threshold_law, exponential_law, gumbel_law

TESTED = (1.1, 1.5, 2.0, 3.5, 8.0, 32.0, 256.0)
RATES = (1.0, 0.3, 0.02)
BOUND = 1.0  # C_obj


def budget(epsilon, delta=1e-5):
    return Budget(epsilon=epsilon, delta=delta, unit=Record())


def asked(rate, epsilon, multiplier=math.inf, bounded_range=False):
    return Event(rate, multiplier, (Choice(epsilon, bounded_range),))


def divergence(one, two, order):
    with np.errstate(divide="ignore"):
        return float(logsumexp(order * np.log(one) + (1 - order) * np.log(two)) / (order - 1))


def moves(generator, count, low):
    """Worst cases first (all or nothing for each candidate), then anything between."""
    corners = generator.integers(0, 2, count) * (BOUND - low) + low
    return corners if generator.random() < 0.7 else generator.uniform(low, BOUND, count)


def pairs(kind, epsilon, generator):
    """(law with the record, law without it) of real mechanisms with 2 to 6 candidates."""
    for count in (2, 3, 4, 6):
        for _ in range(6):
            totals = generator.exponential(3 * BOUND / epsilon) * generator.standard_normal(count)
            if kind == "threshold":
                scales = 2 * BOUND / epsilon, 4 * BOUND / epsilon
                moved = totals + moves(generator, count, -BOUND)
                yield tuple(above_threshold_law(gains, *scales) for gains in (moved, totals))
            else:
                law = gumbel_law if kind == "gumbel" else exponential_law
                moved = totals + moves(generator, count, 0.0)
                yield tuple(law(losses, BOUND / epsilon) for losses in (moved, totals))


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("kind", ["gumbel", "exponential", "threshold"])
def test_no_mechanism_diverges_more_than_its_curve(kind, epsilon):
    choice, largest = Choice(epsilon, kind == "gumbel"), dict.fromkeys(RATES, 0.0)
    for present, absent in pairs(kind, epsilon, np.random.default_rng(7)):
        assert present.sum() == pytest.approx(1.0, abs=1e-9)
        for rate in RATES:
            curve = renyi_curve(Event(rate, math.inf, (choice,)), TESTED)
            drawn = (1 - rate) * absent + rate * present
            for order, bound in zip(TESTED, curve, strict=True):
                for found in (divergence(drawn, absent, order), divergence(absent, drawn, order)):
                    assert found <= bound + 1e-9
                    largest[rate] = max(largest[rate], found / bound)
        for order in TESTED:
            assert divergence(present, absent, order) <= choice.rho * order + 1e-9
    assert max(largest.values()) > 0.3  # the pairs come near the bound, or nothing was tested


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_the_curve_is_attained(rate, epsilon):
    """By randomised response, and for a bounded range by exponential mechanisms with two outcomes, up to the hulls of the pieces."""

    def worst(laws, order):
        found = []
        for present, absent in laws:
            drawn = (1 - rate) * absent + rate * present
            found += [divergence(drawn, absent, order), divergence(absent, drawn, order)]
        return max(found)

    odds = math.exp(epsilon)
    response = [(np.array([odds, 1]) / (1 + odds), np.array([1, odds]) / (1 + odds))]
    ranged = []
    for t in np.linspace(0, epsilon, 101)[1:-1]:  # ln x is t or t − ε, with mean 1
        high, low = math.exp(t), math.exp(t - epsilon)
        mass = (1 - low) / (high - low)
        ranged.append((np.array([mass * high, (1 - mass) * low]), np.array([mass, 1 - mass])))
    for laws, choice in ((response, Choice(epsilon)), (ranged, Choice(epsilon, True))):
        for order, bound in zip(TESTED, renyi_curve(Event(rate, math.inf, (choice,)), TESTED), strict=True):
            assert worst(laws, order) - 1e-10 <= bound <= 1.05 * worst(laws, order) + 1e-9


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 2.0, 10.0])
def test_the_curve_lies_below_rho(epsilon):
    for choice in (Choice(epsilon), Choice(epsilon, True)):
        curve = renyi_curve(Event(1.0, math.inf, (choice,)))
        ratio = curve / (choice.rho * np.array(ORDERS))
        assert ratio.max() <= 1.02
        assert ratio.max() > 0.9 or epsilon > 2  # where ρ matters it is not given away either
    assert Choice(epsilon).rho == pytest.approx(epsilon * math.tanh(epsilon / 2))
    assert Choice(epsilon, True).rho == pytest.approx(epsilon**2 / 8)


def test_curves_stay_finite_for_absurd_choices():
    for epsilon in (1e3, 1e6):
        assert np.isfinite(renyi_curve(asked(0.1, epsilon))).all()
        with pytest.raises(BudgetExhausted):
            charge(RenyiFilter(budget(8.0), {8.0: 1.0}), asked(0.1, epsilon))


def test_without_sampling_all_mechanisms_of_a_batch_add_up():
    together = renyi_curve(Event(1.0, 2.0, (Choice(0.5), Choice(1.0, True))))
    apart = [Event(1.0, 2.0), asked(1.0, 0.5), asked(1.0, 1.0, bounded_range=True)]
    assert together == pytest.approx(np.sum([renyi_curve(one) for one in apart], axis=0))


def test_two_mechanisms_on_a_sampled_batch_are_refused_with_the_rules_that_would_do():
    rule = RenyiFilter(budget(8.0), {8.0: 1.0})
    for event in (asked(0.1, 0.5, 2.0), Event(0.1, math.inf, (Choice(0.5), Choice(0.1)))):
        with pytest.raises(InvalidArgument, match="one mechanism on a sampled batch.*fixed plan or a multiset"):
            charge(rule, event)
        with pytest.raises(InvalidArgument, match="one mechanism"):
            RenyiAccountant().epsilon({event: 1}, 1e-5)
    charge(rule, asked(0.1, 0.5))
    charge(rule, Event(0.1, 2.0))


@pytest.mark.parametrize(("event", "typical"), [(asked(0.1, 0.5), 100), (asked(1.0, 0.1), 20), (asked(0.02, 2.0), 50)])
def test_a_rényi_filter_admits_choices_up_to_its_budget(event, typical):
    """What it admitted costs less than its budget by the exact composition, and not much less."""
    limit = budget(2.0)
    rule = RenyiFilter.around(limit, {event: typical})
    count = 0
    with pytest.raises(BudgetExhausted):
        while True:
            charge(rule, event)
            count += 1
    exact = PrivacyLossAccountant().epsilon({event: count}, limit.delta)
    assert 1.4 < exact <= 2.0
    fresh = RenyiFilter.around(limit, {event: typical})
    assert fits(fresh, {event: count})
    assert not fits(fresh, {event: count + 1})


def test_gumbel_is_cheaper_where_rényi_divergences_add():
    prices = [RenyiAccountant().epsilon({asked(0.2, 1.0, bounded_range=ranged): 50}, 1e-5) for ranged in (True, False)]
    assert prices[0] < 0.7 * prices[1]


def test_the_rényi_accountant_bounds_the_exact_price_of_choices():
    events = {asked(0.1, 0.5): 40, Event(0.1, 2.0): 40, asked(1.0, 0.1): 3}
    exact = PrivacyLossAccountant().epsilon(events, 1e-5)
    assert exact <= RenyiAccountant().epsilon(events, 1e-5) <= 1.5 * exact


def test_the_zcdp_filter_adds_up_rho():
    limit = budget(2.0)
    rule = ConcentratedFilter(limit)
    event = Event(1.0, 10.0, (Choice(0.05), Choice(0.1, True)))
    cost = 1 / 200 + 0.05 * math.tanh(0.025) + 0.1**2 / 8
    assert rule.cost(event) == pytest.approx(cost)
    affordable = math.floor(rule.total / cost)
    assert affordable >= 5
    assert fits(rule, {event: affordable})
    assert not fits(rule, {event: affordable + 1})
    for _ in range(affordable):
        charge(rule, event)
    with pytest.raises(BudgetExhausted):
        charge(rule, event)
    assert PrivacyLossAccountant().epsilon({event: affordable}, limit.delta) <= 2.0
    with pytest.raises(InvalidArgument, match="without sampling only"):
        charge(rule, asked(0.5, 1e-3))


def test_the_gaussian_filter_refuses_selections():
    rule = GaussianFilter(budget(1.0))
    for event in (asked(1.0, 1e-6), asked(1.0, 1e-6, 100.0)):
        with pytest.raises(InvalidArgument, match="Gaussians only.*zCDP filter"):
            charge(rule, event)
        with pytest.raises(InvalidArgument, match="Gaussians only"):
            fits(rule, {event: 1})
