"""Every comparison that decides a price, one last bit to either side of its bound: no tolerance but the one that is declared.

Where a bound is itself the result of rounding, the near miss is the smallest that rounding cannot hide; it is named beside it.
"""

import math
import warnings

import numpy as np
import pytest
import torch

from apportion.accounting import calibration, interpolation
from apportion.accounting.account import Account
from apportion.accounting.accountant import (
    LARGEST_COUNT,
    LARGEST_GROUP,
    PRICED,
    SMALLEST_DELTA,
    PrivacyLossAccountant,
    total_variation,
    usable,
)
from apportion.accounting.calibration import calibrate, longest_affordable
from apportion.accounting.concentrated import TruncatedConcentratedAccountant
from apportion.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from apportion.accounting.ledger import Ledger
from apportion.accounting.renyi import renyi_curve
from apportion.accounting.rules import ConcentratedFilter, FixedPlan, GaussianFilter, Multiset, RenyiFilter, charge
from apportion.accounting.run_filter import Cost, GaussianRuns, SumOfRuns
from apportion.budget import Budget, Record
from apportion.curator.clipping import clip_and_sum
from apportion.errors import BudgetExhausted, InvalidArgument
from apportion.event import Event
from apportion.releases import CLOSEST_POINTS, ClippedSum, Frame, NormHistogram, NormSum, UnclippedCount
from apportion.request import Request
from pieces import changed

RATE, MULTIPLIER, DELTA = 0.013, 1.7, 1e-5
TINY = 1e-9
"""Far above what rounding does to these sums, far below what a tolerance would be."""


def up(value):
    return math.nextafter(value, math.inf)


def down(value):
    return math.nextafter(value, -math.inf)


def budget(epsilon, delta=DELTA):
    return Budget(epsilon=epsilon, delta=delta, unit=Record())


class Priced:
    """An accountant with a price list."""

    name = "a list"

    def __init__(self, price):
        self.epsilon = lambda events, delta: price(events)


# -- tokens --

TOKEN = Event(RATE, MULTIPLIER)
NEAR = [
    (TOKEN, True),
    (Event(down(RATE), MULTIPLIER), True),
    (Event(RATE, up(MULTIPLIER)), True),
    (Event(up(RATE), MULTIPLIER), False),
    (Event(RATE, down(MULTIPLIER)), False),
    (Event(up(RATE), 2 * MULTIPLIER), False),  # nothing makes up for the other
    (Event(RATE / 2, down(MULTIPLIER)), False),
    (Event(RATE * 1.0005, MULTIPLIER), False),
    (Event(RATE, MULTIPLIER * 0.9995), False),
]


@pytest.mark.parametrize(("event", "covered"), NEAR, ids=str)
def test_a_token_covers_what_it_declares_to_the_last_bit(event, covered):
    assert TOKEN.covers(event) is covered
    rules = [FixedPlan([TOKEN] * 2), Multiset({TOKEN: 2}, budget(1.0))]
    for rule in rules:
        account = Account(budget(1.0), rule, Ledger.create())
        if covered:
            account.charge(event)
        else:
            with pytest.raises(BudgetExhausted):
                account.charge(event)
        assert account.spent == covered
    assert sum(rules[1].left.values()) == 2 - covered


def test_the_weakest_token_that_will_do_is_found_among_near_ones():
    """The stronger token stays, whichever was declared first; a token that misses by a last bit is never taken."""
    tokens = [Event(RATE, down(MULTIPLIER)), TOKEN, Event(RATE, up(MULTIPLIER)), Event(up(RATE), MULTIPLIER)]
    for order in (tokens, tokens[::-1]):
        rule = Multiset(dict.fromkeys(order, 1), budget(1.0))
        charge(rule, TOKEN)
        assert rule.left == {token: 1 for token in order if token != TOKEN}
        charge(rule, Event(RATE, up(MULTIPLIER)))
        assert rule.left == {tokens[0]: 1, tokens[3]: 1}


def test_a_plan_may_cost_what_the_budget_has_and_no_more():
    price = 0.7
    for epsilon, fits in ((price, True), (up(price), True), (price * (1 - 1e-8), False), (price / 1.001, False)):
        accountant = Priced(lambda events: price)
        if fits:
            assert Account(budget(epsilon), FixedPlan([TOKEN], accountant=accountant), Ledger.create()).left == 1
        else:
            with pytest.raises(BudgetExhausted, match="cost"):
                Account(budget(epsilon), FixedPlan([TOKEN], accountant=accountant), Ledger.create())


def test_a_multiset_may_cost_what_the_budget_has_and_no_more():
    tokens = {TOKEN: 20}
    price = PrivacyLossAccountant().epsilon(tokens, DELTA)
    assert Multiset(tokens, budget(price)).epsilon(DELTA) == price
    with pytest.raises(InvalidArgument, match="together they cost"):
        Multiset(tokens, budget(down(price)))


@pytest.mark.parametrize("spare", [0, 1, 2])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_an_account_has_as_many_steps_as_were_declared_and_as_many_repetitions_as_spares(steps, spare):
    """Lost steps are taken again while there are spare tokens, then never: whatever a checkpoint says, tokens run out."""
    account = Account(budget(5.0), FixedPlan([TOKEN] * (steps + spare), spare), Ledger.create())
    account.charge(TOKEN)
    for lost in range(spare):
        account.position = 0
        assert (account.next_step, account.rule.spares_left, account.left) == (1, spare - lost, steps)
        account.charge(TOKEN)
    account.position = 0
    assert account.rule.spares_left == 0
    assert (account.next_step, account.left) == (2, steps - 1)
    for _ in range(steps - 1):
        account.charge(TOKEN)
    for position in range(steps + 1):
        account.position = position
        assert account.left == 0
        with pytest.raises(BudgetExhausted):
            account.charge(TOKEN)
    assert account.spent == steps + spare


# -- filters --


@pytest.mark.parametrize("parts", [1, 2, 7])
@pytest.mark.parametrize("rule", [GaussianFilter, ConcentratedFilter, RenyiFilter])
def test_a_filter_admits_its_budget_and_nothing_more(rule, parts):
    """A last part that is too large by 1e-9 of the whole is refused, and then the part that fits is still admitted."""
    own, order = budget(1.5), 9.0
    if rule is RenyiFilter:
        whole = own.epsilon - math.log((order - 1) / order) + (math.log(DELTA) + math.log(order)) / (order - 1)
        make, scale = lambda: RenyiFilter(own, {order: 1.0}), 2 * whole / order
        assert renyi_curve(Event(1.0, 3.0), [order])[0] == pytest.approx(order / 18, rel=1e-12)
    elif rule is GaussianFilter:
        make, scale = lambda: GaussianFilter(own), gaussian_mu(own.epsilon, DELTA) ** 2
    else:
        tail = -math.log(DELTA)
        make, scale = lambda: ConcentratedFilter(own), 2 * (math.sqrt(tail + own.epsilon) - math.sqrt(tail)) ** 2

    def part(size):
        return Event(1.0, (size * scale) ** -0.5)

    charged = Account(own, make(), Ledger.create())
    for _ in range(parts - 1):
        charged.charge(part(1 / parts))
    with pytest.raises(BudgetExhausted):
        charged.charge(part(1 / parts + TINY))
    charged.charge(part(1 / parts - TINY))
    with pytest.raises(BudgetExhausted):
        charged.charge(part(3 * TINY))


def test_filters_without_sampling_know_a_rate_just_below_one():
    for rule in (GaussianFilter, ConcentratedFilter):
        with pytest.raises(InvalidArgument, match="without sampling only"):
            charge(rule(budget(1.0)), Event(down(1.0), 50.0))


@pytest.mark.parametrize(("epsilon", "delta"), [(0.01, 1e-9), (1.0, 1e-5), (8.0, 1e-5), (40.0, 0.01)])
def test_closed_forms_are_rounded_to_the_safe_side(epsilon, delta):
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(mu, epsilon) <= delta
    assert gaussian_delta(mu * (1 + TINY), epsilon) > delta
    found = gaussian_epsilon(mu, delta)
    assert gaussian_delta(mu, found) <= delta
    assert gaussian_delta(mu, found * (1 - TINY)) > delta


# -- runs --


@pytest.mark.parametrize("rule", [GaussianRuns, SumOfRuns])
def test_a_run_fits_into_its_capacity_and_into_nothing_smaller(rule):
    """1e-12 is declared, for binary sums; ten times that is not."""
    room = rule(budget(1.3)).capacity()
    assert room.fits(room)
    for excess in (1e-11, TINY, 1e-3):
        assert not Cost(room.main * (1 + excess), room.failure).fits(room)
        assert not Cost(room.main, room.failure * (1 + excess)).fits(room)
        assert not Cost(0.0, room.failure * (1 + excess)).fits(room)
        assert Cost(room.main * (1 - excess), room.failure * (1 - excess)).fits(room)


@pytest.mark.parametrize("runs", [1, 2, 3])
def test_a_ledger_admits_as_many_runs_as_its_limit_has_room_for(runs):
    plan = {Event(1.0, 9.0): 3}
    price = PrivacyLossAccountant().epsilon(plan, DELTA)
    for epsilon, delta, fits in (
        (runs * price, runs * DELTA, True),
        (runs * price * (1 - TINY), runs * DELTA, False),
        (runs * price, runs * DELTA * (1 - TINY), False),
    ):
        ledger = Ledger.create(name="faces", rule=SumOfRuns(budget(epsilon, delta)))
        tokens = [event for event, times in plan.items() for _ in range(times)]

        def admit(ledger=ledger, tokens=tokens):
            ledger.admit(tokens, ledger.price(plan, budget(2 * price)))

        for _ in range(runs - 1):
            admit()
        if fits:
            admit()
        with pytest.raises(BudgetExhausted, match="does not cover"):
            admit()
        assert len(ledger.runs()) == runs - 1 + fits


def test_the_gaussian_rule_over_runs_adds_squares_and_stops_at_the_limit():
    """Steps on all records have μ² = n/z² to the last bit, so the last run misses by what it is too large."""
    rule = GaussianRuns(budget(1.3))
    half = rule.capacity().main / 2
    for excess, fits in ((-TINY, True), (TINY, False)):
        ledger = Ledger.create(name="faces", rule=rule)
        for size in (half, half + excess * 2 * half):
            event = Event(1.0, size**-0.5)
            cost = ledger.price({event: 1}, budget(9.0))
            if size == half or fits:
                ledger.admit([event], cost)
            else:
                with pytest.raises(BudgetExhausted):
                    ledger.admit([event], cost)
        assert len(ledger.runs()) == 1 + fits


# -- calibration --


def test_calibration_never_takes_a_price_that_is_a_last_bit_too_high():
    """The first scale that is tried costs a last bit too much, everything with more noise is inside the tolerance."""
    target, tried = 2.0, []

    def price(events):
        (event,) = events
        tried.append(event.noise_multiplier)
        return up(target) if event.noise_multiplier <= tried[0] else target * (1 - calibration.TOLERANCE / 4)

    scale = calibrate(Priced(price), [1.0], sample_rate=0.1, epsilon=target, delta=DELTA)
    assert scale == tried[-1] > tried[0]


def test_calibration_takes_a_price_that_is_the_target():
    scale = calibrate(Priced(lambda events: 2.0), [1.0], sample_rate=0.1, epsilon=2.0, delta=DELTA)
    assert scale > 0
    with pytest.raises(InvalidArgument, match="no noise multiplier reaches it"):
        calibrate(Priced(lambda events: up(2.0)), [1.0], sample_rate=0.1, epsilon=2.0, delta=DELTA)
    with pytest.raises(InvalidArgument, match="no noise multiplier reaches it"):
        below = 2.0 * (1 - calibration.TOLERANCE) * (1 - TINY)
        calibrate(Priced(lambda events: below), [1.0], sample_rate=0.1, epsilon=2.0, delta=DELTA)


@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_a_prefix_that_costs_the_budget_fits_and_one_last_bit_more_does_not(length):
    accountant = Priced(lambda events: 0.25 * sum(events.values()))
    price = 0.25 * length
    events = [TOKEN] * 8
    assert longest_affordable(accountant, events, epsilon=price, delta=DELTA) == length
    assert longest_affordable(accountant, events, epsilon=down(price), delta=DELTA) == length - 1


# -- what may be declared --


@pytest.mark.parametrize(
    ("epsilon", "delta", "fits"),
    [
        (up(0.0), 1e-5, True),
        (0.0, 1e-5, False),
        (1.0, up(0.0), True),
        (1.0, 0.0, False),
        (1.0, down(1.0), True),
        (1.0, 1.0, False),
    ],
)
def test_a_budget_lies_inside_its_bounds(epsilon, delta, fits):
    if fits:
        assert budget(epsilon, delta).delta == delta
    else:
        with pytest.raises(InvalidArgument):
            budget(epsilon, delta)


def test_a_delta_of_one_over_the_population_is_the_largest_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        budget(1.0, 1 / 640).warn_if_weak(640)
    with pytest.warns(UserWarning, match="larger than 1/population"):
        budget(1.0, up(1 / 640)).warn_if_weak(640)


def test_what_is_priced_ends_where_it_says():
    Event(1.0, 1.0)
    for rate in (0.0, up(1.0)):
        with pytest.raises(InvalidArgument):
            Event(rate, 1.0)
    assert usable({Event(0.1, PRICED[0]): LARGEST_COUNT}) == {Event(0.1, PRICED[0]): LARGEST_COUNT}
    for event, count in ((Event(0.1, down(PRICED[0])), 1), (TOKEN, LARGEST_COUNT + 1)):
        with pytest.raises(InvalidArgument):
            usable({event: count})
    assert usable({Event(0.1, up(PRICED[1])): 1, Event(0.1, PRICED[1]): 1}) == {Event(0.1, PRICED[1]): 2}
    accountant, full = PrivacyLossAccountant(), {Event(1.0, 3.0): 1}
    assert accountant.epsilon(full, SMALLEST_DELTA) > 0
    assert accountant.epsilon(full, DELTA, group=LARGEST_GROUP) > 0
    for delta, group in ((down(SMALLEST_DELTA), 1), (DELTA, LARGEST_GROUP + 1)):
        with pytest.raises(InvalidArgument):
            accountant.epsilon(full, delta, group=group)


def test_a_price_is_zero_only_while_delta_covers_every_step():
    counts = {Event(0.3, 1.0): 1}  # of one step it is δ(0) itself
    bound = total_variation(counts)
    accountant = PrivacyLossAccountant()
    assert accountant.epsilon(counts, bound) == 0
    assert accountant.epsilon(counts, bound * 0.999) > 0
    twice = {event: 2 * n for event, n in counts.items()}
    assert accountant.epsilon(twice, bound) > 0, "two steps that delta would cover one by one"


def test_a_rate_just_below_one_is_sampled_and_costs_as_much():
    full, almost = (PrivacyLossAccountant().epsilon({Event(rate, 4.0): 3}, DELTA) for rate in (1.0, down(1.0)))
    assert full * (1 - 1e-6) <= almost <= full * 1.01


def test_truncated_concentration_ends_where_its_theorem_does():
    accountant = TruncatedConcentratedAccountant()
    multiplier = math.sqrt(5)
    while 1 / (2 * multiplier**2) > 0.1:
        multiplier = up(multiplier)
    assert accountant.epsilon({Event(0.1, multiplier): 1}, DELTA) > 0
    for event in (Event(up(0.1), multiplier), Event(0.1, multiplier * (1 - 1e-15))):
        with pytest.raises(InvalidArgument, match="tCDP needs"):
            accountant.epsilon({event: 1}, DELTA)


# -- interpolation --


def _nodes():
    """Multipliers on nodes and borders, and their neighbours."""
    found = [1.5, 4.0, *(anchor * math.exp(k * distance) for anchor, distance in NODES for k in (-3, -1, 1, 5))]
    return sorted({near(one) for one in found for near in (up, float, down)})


NODES = list(zip(interpolation._ANCHORS.tolist(), interpolation._DISTANCES.tolist(), strict=True))


@pytest.mark.parametrize("density", [1, 2, 8])
def test_nodes_enclose_every_multiplier_and_rate_to_the_last_bit(density):
    rates = [near(math.exp(-k * interpolation._RATE_DISTANCE)) for k in range(1, 9) for near in (up, float, down)]
    events = {Event(rate, z): 1 for rate, z in zip(rates, _nodes(), strict=False)}
    events |= {Event(rate, 1.5): 1 for rate in rates} | {Event(down(1.0), z): 1 for z in _nodes()}
    with changed({"accounting.interpolation.EXACT": 3}):
        cells = interpolation.cells_of(events, exact=False, density=density)
    seen = 0
    for cell in cells:
        (low_rate, high_z, _), (_, low_z, _), (high_rate, *_), (high_rate_too, low_z_too, _) = cell.corners
        assert low_rate <= high_rate == high_rate_too <= 1
        assert low_z == low_z_too <= high_z
        assert np.all((cell.weights >= 0) & (cell.weights <= 1))
        assert np.allclose(cell.weights.sum(1), 1.0)
        seen += len(cell.counts)
        rate = low_rate + cell.rate * (high_rate - low_rate)
        inside = [e for e in events if low_rate <= e.sample_rate <= high_rate and low_z <= e.noise_multiplier <= high_z]
        assert len(inside) >= len(cell.counts)
        assert all(np.abs(rate - e.sample_rate).min() < 0.1 for e in inside)
    assert seen == len(events)


def test_interpolated_prices_on_and_beside_nodes_are_no_lower_than_exact_ones():
    events = {Event(0.05, z): 3 for z in _nodes()}
    with changed({"accounting.interpolation.EXACT": len(events)}):
        exact = PrivacyLossAccountant().epsilon(events, DELTA)
    with changed({"accounting.interpolation.EXACT": 2}):
        found = PrivacyLossAccountant().epsilon(events, DELTA)
    assert exact * (1 - 1e-6) <= found <= exact * 1.01


# -- clipping --


@pytest.mark.parametrize("length", [1.0, 0.7, 1e-3, 400.0])
def test_a_record_at_the_threshold_stays_and_one_beyond_it_is_cut(length):
    for norm in (down(length), length, up(length), length * (1 + 1e-6), 3 * length):
        rows = {"a": torch.tensor([[norm, 0.0]], dtype=torch.float64)}
        found = clip_and_sum(rows, (ClippedSum(length),))["a"]
        assert float(found[0]) == pytest.approx(min(norm, length), rel=1e-15)
        assert float(found[0]) <= length * (1 + 4e-16)


def test_noise_covers_the_sensitivity_to_the_last_bit():
    """s·√w/z is the sensitivity, headroom included, for shares and multipliers of any size."""
    for share, multiplier, threshold, headroom in (
        (0.3, 1.7, 0.9, 1e-4),
        (1e-3, 0.31, 50.0, 0.0),
        (0.999, 8.0, 1e-3, 0.2),
    ):
        releases = (
            ClippedSum(threshold, ("a",), share, headroom),
            UnclippedCount(threshold, ("a",), (1 - share) / 3),
            NormSum(threshold, ("a",), (1 - share) / 3),
            NormHistogram((0.0, threshold), ("a",), (1 - share) / 3),
        )
        request = Request(0.1, multiplier, 3.0, releases)
        inverse = sum((one.sensitivity / request.standard_deviation(one)) ** 2 for one in releases)
        assert inverse * multiplier**2 <= 1 + 1e-12
        assert request.standard_deviation(releases[0]) >= multiplier * threshold * (1 + headroom) / math.sqrt(share) * (
            1 - 1e-15
        )


def test_shares_that_miss_one_are_refused():
    """1e-9 is declared; ten times that would change the price."""
    for excess, fits in ((0.0, True), (1e-8, False), (-1e-8, False), (1e-3, False)):
        releases = (ClippedSum(1.0, ("a",), 0.5), ClippedSum(1.0, ("b",), 0.5 + excess))
        if fits:
            assert Request(0.1, 1.0, 1.0, releases).event() == Event(0.1, 1.0)
        else:
            with pytest.raises(InvalidArgument, match="add up to 1"):
                Request(0.1, 1.0, 1.0, releases)


def test_the_points_of_a_histogram_are_not_closer_than_declared():
    """Closer ones would let the last bits of other norms move it by more than the headroom."""
    NormHistogram((1 - CLOSEST_POINTS, 1.0))
    for points in ((up(1 - CLOSEST_POINTS), 1.0), (1.0, 1.0), (2.0, 1.0), (0.0, 0.5, 0.5)):
        with pytest.raises(InvalidArgument, match="less than 4 % above"):
            NormHistogram(points)


def test_the_smallest_stabiliser_is_a_millionth_of_the_threshold():
    ClippedSum(2.0, stabiliser=1e-6 * 2.0)
    with pytest.raises(InvalidArgument, match="too small"):
        ClippedSum(2.0, stabiliser=down(1e-6 * 2.0))


@pytest.mark.parametrize(
    ("centre", "scale", "fits"),
    [
        (0.0, 2e-30, True),
        (0.0, 1e-30, False),
        (0.0, 9e29, True),
        (0.0, 1e30, False),
        (9e29, 1.0, True),
        (-1e30, 1.0, False),
    ],
)
def test_a_frame_stays_within_the_range_of_its_numbers(centre, scale, fits):
    def two(value):  # the second number is the odd one
        return {"a": torch.tensor([1.0, value], dtype=torch.float64)}

    frame = Frame(two(centre), two(scale))
    if fits:
        frame.require_usable({"a": (2,)})
    else:
        with pytest.raises(InvalidArgument, match="frame"):
            frame.require_usable({"a": (2,)})
