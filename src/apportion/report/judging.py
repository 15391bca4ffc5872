"""When accuracies count as equal, and when a run cost more than was claimed for it: one rule for tables, pages and the report."""

from __future__ import annotations

CLOSE = 0.003
"""With few seeds, 0.3 points are chance: a cell is met if its mean is at most so far below the printed accuracy, and two recipes that
are no further apart are as good as each other."""


def more_than_claimed(epsilon: float, claimed: float) -> bool:
    """Whether a run spent more than its source says, by more than rounding: ε > claimed·(1 + 1e-9)."""
    return epsilon > claimed * (1 + 1e-9)
