"""Tables of the written pages."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

NOTHING = "–"
"""What was not measured, or does not exist."""


def rows(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body))


def ranged(values: Sequence[float] | None) -> str:
    """The median, and the least and the most where they differ."""
    if not values:
        return NOTHING
    middle = f"{statistics.median(values):.2f}"
    return middle if max(values) - min(values) < 0.005 else f"{middle} [{min(values):.2f}–{max(values):.2f}]"


def whole(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0f}"
