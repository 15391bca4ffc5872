"""When accuracies count as equal, and when a run cost more than was claimed for it: one rule for tables, pages and the report."""

from __future__ import annotations

from typing import Literal

CLOSE = 0.003
"""Accuracies that are at most 0.3 points apart are close. The standard error of a mean over the few seeds that people can afford is of
that size, so a smaller difference is chance; and the tables of the studies count a published figure as met within the same distance,
so that page and table say the same of one file."""


Side = Literal["above", "close to", "below"]


def compare_accuracy(ours: float, other: float) -> Side:
    """Where `ours` lies: |ours - other| ≤ CLOSE is close; rounding of floats (1e-9) does not decide."""
    if abs(ours - other) <= CLOSE + 1e-9:
        return "close to"
    return "above" if ours > other else "below"


def exceeds_claim(epsilon: float, claimed: float) -> bool:
    """Whether a run spent more than its source says, by more than rounding: ε > claimed·(1 + 1e-9)."""
    return epsilon > claimed * (1 + 1e-9)
