"""Answers chosen by the exponential mechanism: a quantile, and counts and medians for people with budgets of their own.

A **law** lists runs of neighbouring whole numbers with one score each: P[r] ∝ e^{score of the run of r}. A run is drawn by one word, with
float64 probabilities, and the number inside it uniformly and exactly. What is released is a number on a public grid, so that its last
digits tell nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.curator.randomness import Stream
from apportion.statistics.column import GRID
from apportion.statistics.discrete_noise import draw_below
from apportion.statistics.roster import NOBODY, Roster

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Law:
    """P[r] ∝ e^{scores[j]} for starts[j] ≤ r < starts[j] + widths[j]."""

    starts: Whole
    widths: Whole
    scores: Floats

    def masses(self) -> Floats:
        """The probability of each run."""
        weights = self.widths * np.exp(self.scores - self.scores.max())
        return np.asarray(weights / weights.sum())

    def draw(self, stream: Stream) -> int:
        """One number."""
        sums = np.cumsum(self.masses())
        uniform = (float(stream.words(1)[0]) + 0.5) * 2.0**-64
        run = min(int(np.searchsorted(sums, uniform * sums[-1], side="right")), len(sums) - 1)
        return int(self.starts[run]) + draw_below(int(self.widths[run]), stream)


def cut_runs(positions: Whole) -> tuple[Whole, Whole]:
    """Starts and widths of the runs into which `positions` cut 0 … GRID: each of them alone, and what lies between two."""
    points = np.unique(positions)
    starts = np.concatenate([[0], np.stack([points, points + 1], axis=1).ravel()])
    widths = np.diff(starts, append=GRID + 1)
    return starts[widths > 0], widths[widths > 0]


def quantile_law(positions: Whole, level: float, epsilon: float) -> Law:
    """Score −ε·u/(2·max(q, 1 − q)), u = max(|below| − q·m, |above| − (1 − q)·m, 0): how many ranks r is away from a q-quantile.

    One record more moves u by at most max(q, 1 − q), so a draw is ε-DP.
    """
    starts, widths = cut_runs(positions)
    below, above = _count_sides(positions, starts, widths)
    excess = np.maximum(below - level * len(positions), above - (1 - level) * len(positions)).clip(min=0.0)
    return Law(starts, widths, -epsilon * excess / (2 * max(level, 1 - level)))


def personal_median_law(positions: Whole, levels: Whole, roster: Roster) -> Law:
    """Score −½·(the cheapest change of the data that makes r a median), each person with their own ε.

    Let k = |below| − |equal| − |above| > 0. Each of these lowers it by one: take away a person below (ε_i), add somebody without a value at
    r (ε_j), put one who was taken away back at r (ε_i again). Nothing lowers it by more, so the k cheapest are the best. If more are
    above, the mirror image.

    Args:
        positions, levels: of the people with a value.
    """
    starts, widths = cut_runs(positions)
    below, above = _count_sides(positions, starts, widths)
    equal = len(positions) - below - above
    missing = roster.sizes - np.bincount(levels, minlength=len(roster.epsilons))
    from_below, from_above = (below - equal - above).clip(min=0), (above - equal - below).clip(min=0)
    cost = np.zeros(len(starts))
    for level, epsilon in enumerate(roster.epsilons):
        for wanted, side in zip(
            (from_below, from_above), _count_sides(positions[levels == level], starts, widths), strict=True
        ):
            taken = np.minimum(wanted, 2 * side + missing[level])
            cost += epsilon * taken
            wanted -= taken  # in place, for the next level
    return Law(starts, widths, -cost / 2)


def personal_count_law(counted: NDArray[np.bool_], roster: Roster) -> Law:
    """Score −½·(Σ of the |r − c| smallest ε): of the counted people for r below the count c, of the others of the roster for r above it."""
    listed, budgets = roster.level != NOBODY, np.array(roster.epsilons)[roster.level]
    down, up = (np.cumsum(np.sort(budgets[listed & who])) for who in (counted, ~counted))
    cost = np.concatenate([down[::-1], [0.0], up])
    return Law(np.arange(len(cost)), np.ones(len(cost), dtype=np.int64), -cost / 2)


def _count_sides(positions: Whole, starts: Whole, widths: Whole) -> tuple[Any, Any]:
    """How many lie below and above each run."""
    ordered = np.sort(positions)
    below = np.searchsorted(ordered, starts, side="left")
    return below, len(ordered) - np.searchsorted(ordered, starts + widths - 1, side="right")
