"""Rules for multipliers that follow released values, with the numbers that tell them apart."""

import numpy as np
import pytest

from apportion import Budget, BudgetExhausted, InvalidArgument, Record, clip
from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.accounting.loss import discretise
from apportion.accounting.renyi import RenyiAccountant
from apportion.accounting.rules import ConcentratedFilter, GaussianFilter, Multiset, RenyiFilter, charge
from apportion.curator.curator import Draw
from apportion.event import Event
from apportion.sampling import Sampling
from runs import make_plan

RATE = 256 / 60_000


def budget(epsilon, delta=1e-5):
    return Budget(epsilon=epsilon, delta=delta, unit=Record())


def affordable(rule, event, most):
    for number in range(most):
        try:
            charge(rule, event)
        except BudgetExhausted:
            return number
    return most


# --- multiset -------------------------------------------------------------------------------------------------------------


def test_tokens_in_any_order_each_once():
    low, high = Event(0.1, 4.0), Event(0.1, 2.0)
    rule = Multiset({low: 2, high: 1}, budget(3.0))
    charge(rule, high)
    charge(rule, low)
    with pytest.raises(BudgetExhausted, match="no unspent token covers"):
        charge(rule, high)
    charge(rule, Event(0.05, 5.0))
    with pytest.raises(BudgetExhausted):
        charge(rule, low)


def test_a_weak_event_takes_the_weakest_token():
    rule = Multiset({Event(0.1, 4.0): 1, Event(0.1, 2.0): 1}, budget(3.0))
    charge(rule, Event(0.1, 9.0))
    assert rule.left == {Event(0.1, 2.0): 1}


def test_a_multiset_costs_what_all_its_tokens_cost():
    tokens = {Event(RATE, 1.2): 2500, Event(RATE, 0.682): 25}
    assert Multiset(tokens, budget(2.0)).epsilon(1e-5) == pytest.approx(PrivacyLossAccountant().epsilon(tokens, 1e-5))
    with pytest.raises(InvalidArgument, match="together they cost"):
        Multiset(tokens, budget(0.5))


@pytest.mark.parametrize("tokens", [[Event(0.1, 2.0)], {Event(0.1, 2.0): 1.5}, {Event(0.1, 2.0): 10**9}, None])
def test_a_multiset_counts_its_tokens(tokens):
    with pytest.raises(InvalidArgument, match="tokens"):
        Multiset(tokens, budget(3.0))


def worst_controller(tokens, epsilon, step):
    """δ of the best adaptive order of `tokens`, by recursion on a grid: V(S, e) = max_t E_{l∼t} V(S∖t, e − l)."""
    kinds = list(dict.fromkeys(tokens))
    losses = {}
    for kind in kinds:
        one = discretise(kind.sample_rate, kind.noise_multiplier, (), step, 1e-9)
        losses[kind] = (one.first, one.removed, one.removed_infinite)
    reach = 4000
    points = (np.arange(-reach, reach + 1)) * step
    known = {}

    def value(counts):
        if counts not in known:
            if not any(counts):
                known[counts] = np.maximum(0.0, -np.expm1(points))
            else:
                best = None
                for position, kind in enumerate(kinds):
                    if counts[position]:
                        rest = value(tuple(n - (k == position) for k, n in enumerate(counts)))
                        first, masses, infinite = losses[kind]
                        total = np.full(len(points), infinite)
                        for offset, mass in enumerate(masses):
                            shifted = np.clip(np.arange(len(points)) - (first + offset), 0, len(points) - 1)
                            total += mass * rest[shifted]
                        best = total if best is None else np.maximum(best, total)
                known[counts] = best
        return known[counts]

    curve = value(tuple(tokens.count(kind) for kind in kinds))
    return float(curve[reach + round(epsilon / step)])


def test_no_controller_beats_the_multiset():
    """Three kinds, two tokens each: the worst adaptive order has exactly the δ of the plain product."""
    step = 5e-3
    tokens = [Event(0.2, 1.5), Event(0.1, 1.0), Event(0.3, 2.5)] * 2
    adaptive = worst_controller(tokens, 1.0, step)
    together = PrivacyLossAccountant().curve(dict.fromkeys(tokens[:3], 2), 1e-6).removed.delta(1.0)
    assert adaptive == pytest.approx(together, rel=5e-3)


def test_switching_between_paths_of_equal_price_is_refused():
    """2,500 more at 1.2 or 25 at 0.682: 1.181 on either path, but 1.2525 in truth. The declared tokens do not cover the switch."""
    rule = Multiset({Event(RATE, 1.2): 5000}, budget(1.19))
    for _ in range(2500):
        charge(rule, Event(RATE, 1.2))
    with pytest.raises(BudgetExhausted):
        charge(rule, Event(RATE, 0.682))
    both = {Event(RATE, 1.2): 5000, Event(RATE, 0.682): 25}
    assert PrivacyLossAccountant().epsilon(both, 1e-5) >= 1.2525


# --- Rényi ----------------------------------------------------------------------------------------------------------------


def test_the_price_of_a_renyi_filter():
    """5,000 steps at 1.2: PLD 1.181, one order 1.298, weight 0.8 on the best of nine 1.315."""
    event = Event(RATE, 1.2)
    assert affordable(RenyiFilter(budget(1.300), {14.0: 1.0}), event, 5001) >= 5000
    assert affordable(RenyiFilter(budget(1.296), {14.0: 1.0}), event, 5001) < 5000
    assert affordable(RenyiFilter.around(budget(1.318), {event: 5000}), event, 5001) >= 5000
    assert affordable(RenyiFilter.around(budget(1.310), {event: 5000}), event, 5001) < 5000


def test_a_refused_event_changes_nothing():
    rule = RenyiFilter(budget(1.3), {14.0: 1.0})
    with pytest.raises(BudgetExhausted):
        charge(rule, Event(RATE, 0.2))
    assert affordable(rule, Event(RATE, 1.2), 10) == 10


def test_orders_die_and_do_not_come_back():
    """An event that only the low order survives; afterwards the high order must not serve again."""
    low_only = RenyiFilter(budget(10.0), {3.0: 0.5, 30.0: 0.5})
    charge(low_only, Event(RATE, 0.45))
    assert not low_only._alive[1]
    high_alive = RenyiFilter(budget(10.0), {3.0: 0.5, 30.0: 0.5})
    charge(low_only, Event(RATE, 1.0))
    charge(high_alive, Event(RATE, 1.0))
    assert high_alive._alive[1]
    assert not low_only._alive[1]


@pytest.mark.parametrize("weights", [{}, {14.0: 0.5}, {14.0: 1.5, 3.0: -0.5}, {1.0: 1.0}])
def test_weights_must_be_a_distribution_over_orders(weights):
    with pytest.raises(InvalidArgument, match="weights"):
        RenyiFilter(budget(1.0), weights)


# --- without sampling -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [GaussianFilter, ConcentratedFilter])
def test_filters_without_sampling(rule):
    with pytest.raises(InvalidArgument, match="without sampling only"):
        charge(rule(budget(1.0)), Event(0.5, 10.0))
    spending = rule(budget(1.0))
    count = affordable(spending, Event(1.0, 20.0), 10_000)
    exact = PrivacyLossAccountant().epsilon({Event(1.0, 20.0): count}, 1e-5)
    assert 0 < exact <= 1.0
    if rule is GaussianFilter:
        assert PrivacyLossAccountant().epsilon({Event(1.0, 20.0): count + 1}, 1e-5) > 1.0


# --- in types -------------------------------------------------------------------------------------------------------------


class Restless:
    """Chooses z from what was released."""

    multiplier = None

    def init(self, context):
        return 1.0

    def choose(self, state, context):
        return state

    def observe(self, state, released):
        return 2 * state


@pytest.mark.parametrize(("rate", "rule"), [(0.1, RenyiFilter), (1.0, GaussianFilter)])
def test_a_noise_strategy_that_follows_releases_is_planned_under_a_filter(rate, rule):
    plan = make_plan(budget(1.0), Sampling(1000, rate, 10), clip.Fixed(1.0), Restless())
    assert type(plan.rule()) is rule
    assert plan.rule().adaptive


def test_a_batch_cannot_be_asked_twice():
    """A drawn batch has one multiplier, from its frozen request, and no call that asks it for more."""
    public = {name for name in vars(Draw) if not name.startswith("_")}
    assert public == {"request", "noised", "released", "micro_batches", "add", "release", "secret_dropout"}


@pytest.mark.parametrize("multiplier", [1e-300, 1e-160, 1e-100, 1e100, 1e160, 1e300])
def test_multipliers_at_the_ends_of_what_numbers_can_hold(multiplier):
    """Their squares cannot be computed. Too little noise does not fit, and so much of it costs nothing that can be measured."""
    rules = [RenyiFilter(budget(3.0), {14.0: 1.0}), ConcentratedFilter(budget(3.0)), GaussianFilter(budget(3.0))]
    for rule, rate in [(rules[0], 0.1), *((rule, 1.0) for rule in rules)]:
        if multiplier < 1:
            with pytest.raises(BudgetExhausted):
                charge(rule, Event(rate, multiplier))
        else:
            assert affordable(rule, Event(rate, multiplier), 5) == 5
    for rate in (0.1, 1.0):
        price = RenyiAccountant().epsilon({Event(rate, multiplier): 1}, 1e-5)
        assert price == 0 if multiplier > 1 else price > 1e100
