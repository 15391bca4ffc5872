"""Which threshold is tried next. A rule is a pure function of what was tried, so an interrupted search goes on from its trace."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from apportion import validate
from apportion.errors import InvalidArgument

DIGITS = 12
"""Thresholds are rounded to so many decimals: 0.06, and not 0.060000000000000005."""
_ROUNDING = 1e-9  # far below one record of any test set; 0.90 − 0.88 is not more than 0.02


@dataclass(frozen=True)
class Trial:
    """One candidate: an epoch of training with one threshold, and the accuracy on the evaluation set afterwards."""

    run: int
    epoch: int
    threshold: float
    accuracy: float


def best_of(tried: Sequence[Trial]) -> Trial | None:
    """The trial with the highest accuracy, of equal ones that with the smallest threshold; `None` if all scored 0."""
    best = max(tried, key=lambda trial: (trial.accuracy, -trial.threshold), default=None)
    return best if best is not None and best.accuracy > 0 else None


@dataclass(frozen=True)
class Rule(ABC):
    """Chooses the candidates of one epoch.

    Args:
        start: C_start, the smallest candidate, and the answer if all candidates score 0.
        maximum: C_max, the largest candidate.
    """

    start: float = 0.05
    maximum: float = 2.0

    name: ClassVar[str]
    paired: ClassVar[bool]
    """Whether all candidates of an epoch see the same batches and the same noise directions."""

    def __post_init__(self) -> None:
        reason = "it bounds what one record can do"
        start = validate.positive("start", self.start, reason, "Try start=0.05")
        maximum = validate.positive("maximum", self.maximum, "without it a search might never end", "Try maximum=2.0")
        if maximum < start:
            raise InvalidArgument("maximum", maximum, f"it lies below start={start:g}", "Use a larger maximum")
        validate.store(self, start=start, maximum=maximum)

    @property
    @abstractmethod
    def most(self) -> int:
        """The largest number of candidates that an epoch can have."""

    @abstractmethod
    def upcoming(self, tried: Sequence[Trial]) -> list[float]:
        """The candidates that come next, in order, as long as none of them ends the search; empty if it has ended."""

    @abstractmethod
    def doubt(self, tried: Sequence[Trial]) -> str | None:
        """Why a larger maximum might have given another answer, if it might."""

    def describe(self) -> dict[str, Any]:
        """The rule as data."""
        return {"name": self.name, **vars(self)}


@dataclass(frozen=True)
class Greedy(Rule):
    """C = C_start, C_start + d, C_start + 2d, … up to C_max; ends at the first candidate that scores more than S below the best so far.

    Args:
        step: d.
        tolerance: S, as a fraction.

    Source: Lin et al., Understanding Adaptive Gradient Clipping in DP-SGD, Empirically, algorithm 1, read with its text: every candidate is
    one *epoch* from the model of the epoch before. For photographs they use start 2.0, step 0.5 and tolerance 0.06. C_max is ours.
    """

    step: float = 0.01
    tolerance: float = 0.02

    name = "greedy"
    paired = False

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.store(
            self,
            step=validate.positive("step", self.step, "each candidate is larger than the last", "Try step=0.01"),
            tolerance=validate.positive(
                "tolerance", self.tolerance, "with 0 the first unlucky epoch would end the search", "Try tolerance=0.02"
            ),
        )

    @property
    def most(self) -> int:
        return int((self.maximum - self.start) / self.step + _ROUNDING) + 1

    def upcoming(self, tried: Sequence[Trial]) -> list[float]:
        if self._fell(tried):
            return []
        return [self._candidate(number) for number in range(len(tried), self.most)]

    def doubt(self, tried: Sequence[Trial]) -> str | None:
        return None if self._fell(tried) else f"no candidate scored more than {self.tolerance:g} below the best"

    def _fell(self, tried: Sequence[Trial]) -> bool:
        """Whether the last candidate ended the search. Earlier ones did not, or it would not have been tried."""
        highest = max((trial.accuracy for trial in tried), default=0.0)
        return bool(tried) and highest - tried[-1].accuracy > self.tolerance + _ROUNDING

    def _candidate(self, number: int) -> float:
        return round(self.start + number * self.step, DIGITS)  # not by adding up: errors would add up too


@dataclass(frozen=True)
class Fast(Rule):
    """Ten candidates at most: six from C_start to C_max in equal ratios, then four between the best of them and its neighbours.

    All of an epoch see the same batches and the same noise directions, so that less of a difference is luck. Ours.
    """

    name = "fast"
    paired = True
    coarse: ClassVar[int] = 6
    fine: ClassVar[int] = 4

    @property
    def most(self) -> int:
        return self.coarse + self.fine

    def upcoming(self, tried: Sequence[Trial]) -> list[float]:
        grid = _between(self.start, self.maximum, self.coarse - 2, ends=True)
        if len(tried) < len(grid):
            return grid[len(tried) :]
        best = best_of(tried[: len(grid)])
        if best is None:
            return []
        place = grid.index(best.threshold)
        neighbours = grid[max(0, place - 1) : place + 2]
        gaps = list(pairwise(neighbours))
        inner = [point for low, high in gaps for point in _between(low, high, self.fine // len(gaps))]
        return inner[len(tried) - len(grid) :]

    def doubt(self, tried: Sequence[Trial]) -> str | None:
        best = best_of(tried)
        return "the largest candidate was the best" if best and best.threshold == self.maximum else None


def _between(low: float, high: float, count: int, *, ends: bool = False) -> list[float]:
    """`count` numbers between `low` and `high` in equal ratios, with or without these two."""
    points = [round(float(point), DIGITS) for point in np.geomspace(low, high, count + 2)]
    points = sorted({low, *points[1:-1], high})
    return points if ends else points[1:-1]


RULES: dict[str, type[Rule]] = {rule.name: rule for rule in (Greedy, Fast)}
