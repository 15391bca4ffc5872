"""ε(δ) of events that were fixed in advance, by composing their privacy loss distributions.

For neighbouring data sets the privacy loss of a step is L = ln p(y)/q(y). Losses of independent steps add, so their distributions
convolve, and δ(ε) = E[(1 − e^{ε−L})₊]. `loss.py` discretises one step so that δ can only grow, `interpolation.py` prices thousands of
different steps with a few dozen, `composition.py` convolves. Both directions (a record removed, a record added) are composed
separately and the larger ε is reported. The result is an upper bound, up to the stated allowance for rounding.

The events must have been fixed in advance: a plan, or declared tokens spent in any order. See docs/accounting.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Protocol

from apportion import validate
from apportion.accounting.buckets import bucket_multipliers
from apportion.accounting.composition import Composition, Curve
from apportion.accounting.gaussian import gaussian_delta, gaussian_epsilon
from apportion.accounting.grid import Grid, choose_grid, make_cells
from apportion.accounting.interpolation import EXACT, Cell
from apportion.errors import InvalidArgument
from apportion.event import Event

SMALLEST_DELTA = 1e-60
LARGEST_GROUP = 32
LARGEST_COUNT = 10**9
LARGEST_PRICE = 1e5
"""Beyond about this ε nothing is protected, and the price is given as infinite instead of being computed."""
PRICED = (1e-2, 1e6)
"""Multipliers: below, a single step has an ε in the thousands and is refused; above, the price is that of the upper limit."""
LARGEST_CHOICES = 500.0
"""ε of all selections of one batch together, beyond which they protect nobody and are refused."""
LARGEST_OUTCOMES = 1024
"""Of the selections of one batch, as randomised responses: n of the same ε have n + 1. Each takes a grid of its own."""
_PROFILE = (0.3, 1e-2, 1e-4, 1e-6, 1e-9, 1e-12)
_ROOM = (1.05, 1.5, 3.0)  # how much wider the window is made, should the first one be too narrow


class Accountant(Protocol):
    """Anything that can price a fixed set of events."""

    name: str

    def epsilon(self, events: Mapping[Event, int], delta: float) -> float: ...


def count_events(events: Iterable[Event]) -> Counter[Event]:
    """Equal events are one row with a count: the order of fixed events does not change their price."""
    return Counter(events)


class PrivacyLossAccountant:
    """The upper bound of ε by privacy loss distributions. Stateless: the same events always have the same price.

    Examples:
        >>> from apportion.accounting.accountant import PrivacyLossAccountant
        >>> from apportion.event import Event
        >>> round(PrivacyLossAccountant().epsilon({Event(0.01, 1.0): 1000}, delta=1e-5), 3)
        1.829
    """

    name = "PLD (privacy loss distributions, upper bound)"

    def epsilon(self, events: Mapping[Event, int], delta: float, *, group: int = 1) -> float:
        """The smallest ε for which the composition of `events` is (ε, `delta`)-DP. No events cost 0, absurd ones ∞.

        Args:
            events: how often each event occurs.
            delta: δ.
            group: m, for the guarantee of m records that are added or removed together.
        """
        _check(delta, group)
        return _epsilon(tuple(usable(events).items()), delta, group)

    def delta(self, events: Mapping[Event, int], epsilon: float, *, group: int = 1) -> float:
        """δ(ε) of the composition; resolved down to about 1e-12."""
        validate.non_negative("epsilon", epsilon, "it is a privacy loss", "Use epsilon >= 0")
        return self.profile(events, group=group)(epsilon)

    def profile(self, events: Mapping[Event, int], *, group: int = 1) -> Callable[[float], float]:
        """The function ε ↦ δ(ε). Each curve is sharp near the δ it was made for, and all are upper bounds, so the least counts."""
        counts = merge_unsampled(events)
        if not counts:
            return lambda epsilon: 0.0
        if mu := unsampled_mu(counts):
            return lambda epsilon: gaussian_delta(group * mu, epsilon)
        _require_priced_group(counts, group)
        most = min(1.0, total_variation(counts, group))
        curves = [self.curve(counts, delta, group=group) for delta in _PROFILE]
        return lambda epsilon: min(most, *(curve.delta(epsilon) for curve in curves))

    def curve(self, events: Mapping[Event, int], delta: float, *, group: int = 1) -> Curve:
        """The curve δ(ε), sharp where it is near `delta`; elsewhere the allowance for rounding can make it loose (`profile`)."""
        _check(delta, group)
        counts = merge_unsampled(events)
        _require_priced_group(counts, group)
        if _is_absurd(counts, group):
            reason = f"together they cost more than {LARGEST_PRICE:g}"
            raise InvalidArgument("events", f"{sum(counts.values())} steps", reason, "Add noise")
        return _compose(counts, delta, group)


class RunningPrice:
    """ε of a run so far, step by step: a new step does not start again.

    Args:
        plan: everything that may come. The grid is chosen for it, so the price of a short prefix can be a little higher than necessary.
        delta: δ.
    """

    def __init__(self, plan: Mapping[Event, int], delta: float):
        _check(delta, 1)
        self._delta = delta
        plan = usable(plan)
        self._exact = len(plan) <= EXACT
        self._total: Counter[Event] = Counter()
        self._waiting: Counter[Event] = Counter()
        # Without sampling there is a closed form, and nothing to convolve.
        sampled = any(event.sample_rate < 1 or event.choices for event in plan)
        self._composition = Composition(_grid_of_runs(tuple(plan.items()), delta)) if sampled else None

    def add(self, event: Event) -> None:
        """Count one more step."""
        self._total[event] += 1
        self._waiting[event] += 1

    def epsilon(self) -> float:
        """ε of all steps added so far. No steps cost 0."""
        if self._composition is None or not self._total:
            return PrivacyLossAccountant().epsilon(self._total, self._delta)
        if self._waiting:
            self._composition.add(self._cells(self._waiting))
            self._waiting.clear()
        return self._composition.curve().epsilon(self._delta)

    def _cells(self, events: Mapping[Event, int]) -> list[Cell]:
        return make_cells(usable(events), self._delta, exact=self._exact)


@lru_cache(maxsize=4)  # as many as grids are kept
def _grid_of_runs(plan: tuple[tuple[Event, int], ...], delta: float) -> Grid:
    """The grid for the running price of a plan, which is often run again: with other seeds, or on neighbouring data sets."""
    return choose_grid(make_cells(dict(plan), delta), delta)


def _compose(counts: Mapping[Event, int], delta: float, group: int) -> Curve:
    """The curve of events that can be priced, on a window that is wide enough for `delta`."""
    cells = make_cells(counts, delta, group=group)
    for room in _ROOM:
        composition = Composition(choose_grid(cells, delta, group=group, room=room))
        composition.add(cells)
        curve = composition.curve()
        if curve.beyond <= 1e-3 * delta:
            return curve
    reason = "the tail of the loss could not be resolved that far for these events"
    raise InvalidArgument("delta", delta, reason, "Use a larger delta or more noise")


def usable(events: Mapping[Event, int]) -> dict[Event, int]:
    """The events as they are priced, after refusing what cannot be. Less noise than there was can only raise the price."""
    counts: Counter[Event] = Counter()
    for event, count in events.items():
        number = count if type(count) is int and count >= 0 else _read_count(event, count)
        if number > LARGEST_COUNT:
            raise InvalidArgument("count", count, f"at most {LARGEST_COUNT:g} steps are priced", "Check the schedule")
        if event.noise_multiplier < PRICED[0]:
            reason = f"a step with less noise than {PRICED[0]:g} protects nobody, and is not priced"
            raise InvalidArgument("noise_multiplier", event.noise_multiplier, reason, "Use more noise")
        if event.choices:
            _require_priced_choices(event)
        if event.groups or event.noise_multiplier > PRICED[1]:
            event = Event(event.sample_rate, min(event.noise_multiplier, PRICED[1]), event.choices)
        counts[event] += number
    return counts


def _read_count(event: Event, count: int) -> int:
    return validate.whole("count", count, f"it is how often {event} occurs", "Use whole numbers", least=0)


def _require_priced_choices(event: Event) -> None:
    if (total := math.fsum(choice.epsilon for choice in event.choices)) > LARGEST_CHOICES:
        reason = f"selections of more than {LARGEST_CHOICES:g} protect nobody, and are not priced"
        raise InvalidArgument("epsilon", total, reason, "Use a smaller epsilon for each selection")
    outcomes = math.prod(1 + n for n in Counter(choice.epsilon for choice in event.choices).values())
    if outcomes > LARGEST_OUTCOMES:
        reason = f"together they have {outcomes:,} outcomes, and at most {LARGEST_OUTCOMES:,} are priced"
        fix = "Use the same epsilon for several, or more batches"
        raise InvalidArgument("choices", f"{len(event.choices)} on one batch", reason, fix)


def merge_unsampled(events: Mapping[Event, int]) -> dict[Event, int]:
    """Steps on all records (q = 1) are one Gaussian with μ² = Σμ_t², exactly."""
    return _merged(usable(events))


def _merged(events: Mapping[Event, int]) -> dict[Event, int]:
    plain = {event for event in events if event.sample_rate == 1 and not event.choices}
    total = math.fsum(events[event] / event.noise_multiplier**2 for event in plain)
    counts = {event: n for event, n in events.items() if n > 0 and (not plain or event not in plain)}
    return counts | ({Event(1.0, total**-0.5): 1} if total else {})


def unsampled_mu(counts: Mapping[Event, int]) -> float | None:
    """μ if a single Gaussian on all records is everything that there is."""
    (event, *others) = counts
    alone = not others and counts[event] == 1 and not event.choices
    return 1 / event.noise_multiplier if alone and event.sample_rate == 1 else None


@lru_cache(maxsize=256)
def _epsilon(events: tuple[tuple[Event, int], ...], delta: float, group: int) -> float:
    """A run asks for the same prices again and again: while it is planned, admitted, reported, resumed, audited."""
    counts = _merged(dict(events))
    _require_priced_group(counts, group)
    if group > 1:  # for groups interpolation is not proved, rounding down is always safe
        counts = bucket_multipliers(counts, most=min(EXACT, 256 // group))
    if not counts:
        return 0.0
    if mu := unsampled_mu(counts):
        return gaussian_epsilon(group * mu, delta)
    if total_variation(counts, group) <= delta:
        return 0.0
    if _is_absurd(counts, group):
        return math.inf
    return _compose(counts, delta, group).epsilon(delta)


def total_variation(counts: Mapping[Event, int], group: int = 1) -> float:
    """A bound of δ(0): the total variations of single steps add up at worst. Seeing none of the group costs nothing."""
    touched = (n * -math.expm1(group * math.log1p(-min(e.sample_rate, 1 - 1e-16))) for e, n in counts.items())
    shifts = (
        math.erf(group / (2 * math.sqrt(2) * event.noise_multiplier))
        + math.fsum(math.tanh(group * choice.epsilon / 2) for choice in event.choices)
        for event in counts
    )
    return math.fsum(one * shift for one, shift in zip(touched, shifts, strict=True))


def _is_absurd(counts: Mapping[Event, int], group: int) -> bool:
    """Whether ε is in the region of `LARGEST_PRICE` or beyond. A rule of thumb, which is safe: ∞ bounds every price.

    ε is about Σμ²/2 where it is large. In n steps a record is drawn hardly more than m = nq + 10·√(nq) + 40 times, so μ² is at most
    about min(n, m)/z², and by the central limit n·q²·(e^{1/z²} − 1).
    """

    def spread(event: Event, n: int) -> float:
        q, inverse = event.sample_rate, event.noise_multiplier**-2 + 2 * math.fsum(one.rho for one in event.choices)
        drawn = min(n, n * q + 10 * math.sqrt(n * q) + 40)
        return min(n * q**2 * math.expm1(min(inverse, 700.0)), drawn * inverse)

    return group**2 * math.fsum(spread(event, n) for event, n in counts.items()) / 2 > LARGEST_PRICE


def _require_priced_group(counts: Mapping[Event, int], group: int) -> None:
    """ε₀ of a selection holds for one record; m of them move its candidates m times as far."""
    if group > 1 and any(event.choices for event in counts):
        reason = "groups are priced for sums with Gaussian noise, not for selections"
        raise InvalidArgument("group", group, reason, "Use group=1")


def _check(delta: float, group: int) -> None:
    validate.delta(delta)
    if delta < SMALLEST_DELTA:
        raise InvalidArgument(
            "delta", delta, f"tails below {SMALLEST_DELTA:g} are not resolved", f"Use at least {SMALLEST_DELTA:g}"
        )
    if validate.whole("group", group, "it is a number of records", "Use group=1 for single records") > LARGEST_GROUP:
        raise InvalidArgument(
            "group", group, f"groups beyond {LARGEST_GROUP} records are not priced", "Make each person one record"
        )
