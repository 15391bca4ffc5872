"""Fewer different multipliers, on the safe side or on the other one, for accountants that are slow for each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from apportion.errors import InvalidArgument
from apportion.event import Event

MOST = 40


def require_gaussian(events: Mapping[Event, int]) -> None:
    """Refuse selections, for accountants that know of Gaussians only."""
    found = next((event for event, count in events.items() if count and event.choices), None)
    if found is not None:
        raise InvalidArgument(
            "events", found, "this accountant prices sums with Gaussian noise only, and it is a selection", "Use PLD"
        )


def bucket_multipliers(
    events: Mapping[Event, int], *, upwards: bool = False, most: int | None = None
) -> dict[Event, int]:
    """Round multipliers onto a geometric grid of at most `most` (40) values, shared among the sampling rates.

    Rounding down means less noise than there was, so whatever bounds the result's ε from above bounds the true one. Rounding up
    gives a lower bound in the same way. With at most `most` different events nothing is rounded.
    """
    choices = {event: n for event, n in events.items() if n and event.choices}  # few, and left as they are
    counts = {event: n for event, n in events.items() if n and not event.choices}
    most = MOST if most is None else most
    if len(counts) <= most:
        return counts | choices
    rates = sorted({event.sample_rate for event in counts})
    rounded: Counter[Event] = Counter()
    for rate in rates:
        own = {event.noise_multiplier: n for event, n in counts.items() if event.sample_rate == rate}
        grid = np.geomspace(min(own), max(own), max(2, most // len(rates)))
        grid[0], grid[-1] = min(own), max(own)  # geomspace rounds its ends
        for multiplier, n in own.items():
            index = np.searchsorted(grid, multiplier) if upwards else np.searchsorted(grid, multiplier, "right") - 1
            rounded[Event(rate, float(grid[index]))] += n
    return dict(rounded) | choices
