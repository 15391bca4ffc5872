"""ε(δ) of a set of events, by composing their privacy loss distributions.

For neighbouring data sets the privacy loss of a step is L = ln p(y)/q(y). Losses of independent steps add, so their
distributions convolve, and δ(ε) = E[(1 − e^{ε−L})₊]. A discretised distribution that rounds pessimistically gives an upper
bound; both directions (a record added, a record removed) are composed separately and the larger ε is reported.

`dp_accounting` does the discretisation (connect-the-dots) and the convolution. The events must have been fixed in advance: a
plan, or declared tokens. See docs/privacy.md for what may follow released values and what may not.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from apportion import validate
from apportion.request import Event

_GRID = 1e-4  # width of a cell of the loss; dp_accounting's own default


class Accountant(Protocol):
    """Anything that can price a fixed set of events."""

    name: str

    def epsilon(self, events: Mapping[Event, int], delta: float) -> float: ...


class PrivacyLossAccountant:
    """The upper bound of ε by privacy loss distributions. Stateless: the same events always have the same price."""

    name = "PLD (privacy loss distributions, upper bound, dp_accounting)"

    def epsilon(self, events: Mapping[Event, int], delta: float) -> float:
        """The smallest ε on the grid for which the composition of `events` is (ε, `delta`)-DP. No events cost 0."""
        validate.in_open_unit("delta", delta, "it is a failure probability", "Use less than 1/population")
        counts = tuple(sorted((event.sample_rate, event.noise_multiplier, n) for event, n in events.items() if n > 0))
        return _epsilon(counts, delta)


def count_events(events: Iterable[Event]) -> Counter[Event]:
    """Equal events are one row with a count: the order of fixed events does not change their price."""
    return Counter(events)


@functools.lru_cache(maxsize=4096)
def _epsilon(counts: tuple[tuple[float, float, int], ...], delta: float) -> float:
    total: Any = None
    for sample_rate, noise_multiplier, count in counts:
        part = _loss_distribution(sample_rate, noise_multiplier).self_compose(count)
        total = part if total is None else total.compose(part)
    return 0.0 if total is None else float(total.get_epsilon_for_delta(delta))


@functools.lru_cache(maxsize=256)
def _loss_distribution(sample_rate: float, noise_multiplier: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution  # slow to import, and not needed to print a help text

    return privacy_loss_distribution.from_gaussian_mechanism(
        noise_multiplier, sampling_prob=sample_rate, value_discretization_interval=_GRID, use_connect_dots=True
    )
