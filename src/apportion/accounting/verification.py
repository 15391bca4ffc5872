"""An independent price: the same events, recomputed by Google's `dp_accounting`. So nobody has to trust this library's accountant.

`dp_accounting` needs up to half a second for each different multiplier. Beyond 40 the multipliers are rounded onto a grid, once down
(an upper bound) and once up (a lower bound), and the price must lie between the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dp_accounting import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant

from apportion import validate
from apportion.accounting.buckets import MOST, bucket_multipliers, require_gaussian
from apportion.errors import InvalidArgument
from apportion.event import Event

TOLERANCE = 0.005
"""How far apart two prices may lie, relatively."""


@dataclass(frozen=True)
class IndependentPrice:
    """What `dp_accounting` says. `lowest` and `highest` differ only if there were too many multipliers to price each."""

    lowest: float
    highest: float

    @property
    def rounded(self) -> bool:
        return self.lowest != self.highest

    def difference(self, epsilon: float) -> float:
        """How far `epsilon` lies outside, relatively: negative if it is below `lowest`, 0 if it is inside."""
        if self.lowest <= epsilon <= self.highest:
            return 0.0
        nearest = self.lowest if epsilon < self.lowest else self.highest
        return (epsilon - nearest) / nearest if nearest else math.inf

    def agrees(self, epsilon: float) -> bool:
        """Whether `epsilon` is at most 0.5 % outside."""
        return abs(self.difference(epsilon)) <= TOLERANCE


def independent_price(events: Mapping[Event, int], delta: float) -> IndependentPrice:
    """ε of `events` at `delta` by `dp_accounting`'s privacy loss distributions, for adding or removing one record."""
    validate.delta(delta)
    require_gaussian(events)
    highest = _price(bucket_multipliers(events), delta)
    if len([event for event, n in events.items() if n]) <= MOST:
        return IndependentPrice(highest, highest)
    return IndependentPrice(_price(bucket_multipliers(events, upwards=True), delta), highest)


def _price(events: Mapping[Event, int], delta: float) -> float:
    if not events:
        return 0.0
    accountant = PLDAccountant(value_discretization_interval=_interval(events))
    accountant.compose(
        ComposedDpEvent([SelfComposedDpEvent(_as_dp_event(event), count) for event, count in events.items()])
    )
    epsilon = float(accountant.get_epsilon(delta))
    if math.isinf(epsilon):
        raise InvalidArgument(
            "delta", delta, "dp_accounting does not resolve it and answers infinity", "Use a larger delta"
        )
    return epsilon


def _as_dp_event(event: Event) -> GaussianDpEvent | PoissonSampledDpEvent:
    release = GaussianDpEvent(event.noise_multiplier)
    return release if event.sample_rate == 1 else PoissonSampledDpEvent(event.sample_rate, release)


def _interval(events: Mapping[Event, int]) -> float:
    """A twentieth of a typical step's loss: coarser grids make `dp_accounting` loose, finer ones slow.

    The standard deviation of a step's loss is about q·√(e^{1/z²} − 1), as in the central limit.
    """
    squares = (n * e.sample_rate**2 * math.expm1(min(e.noise_multiplier**-2, 50.0)) for e, n in events.items())
    typical = math.sqrt(math.fsum(squares) / sum(events.values()))
    return min(max(0.05 * typical, 1e-5), 1e-3)
