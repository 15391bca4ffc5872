"""What the score of a run is, and how it is shown: accuracy in percent, any other metric as a number; errors are better when lower."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apportion.reporting.formatting import DASH, format_percent
from apportion.reporting.judging import Side, compare_accuracy


@dataclass(frozen=True)
class Measure:
    """A metric by its name, in which direction it is better, and whether it is a noisy score of held-out private records."""

    name: str = "accuracy"
    better: str = "higher"
    held_out: bool = False

    @classmethod
    def of(cls, details: Mapping[str, Any]) -> Measure:
        """The metric of a run, from its details; accuracy where they say nothing."""
        better = "lower" if details.get("better") == "lower" else "higher"
        return cls(str(details.get("metric") or "accuracy"), better, bool(details.get("holdout")))

    def to_json(self) -> dict[str, str]:
        """As the details of a run have it."""
        return {"metric": self.name, "better": self.better}

    @property
    def title(self) -> str:
        """What stands above a column of scores."""
        return f"noisy held-out {self.name}" if self.held_out else f"test {self.name}"

    @property
    def in_percent(self) -> bool:
        return self.name == "accuracy"

    @property
    def best(self) -> str:
        """The word for the best of several."""
        return "highest" if self.better == "higher" else "lowest"

    def rank(self, score: float | None) -> float:
        """To sort by, the best last: a run without a score comes first."""
        return float("-inf") if score is None else score if self.better == "higher" else -score

    def compare(self, ours: float, other: float) -> Side:
        """Where `ours` lies; errors, which have any size, are close within the same share of the larger one."""
        if self.better == "higher":
            return compare_accuracy(ours, other)
        scale = max(abs(ours), abs(other)) or 1.0
        return compare_accuracy(ours / scale, other / scale)

    def show(self, score: float | None, digits: int = 1) -> str:
        """A score, as a table has it."""
        return format_percent(score, digits) if self.in_percent else DASH if score is None else f"{score:.4g}"

    def show_reached(self, score: float | None) -> str:
        """A score, as a sentence has it."""
        return self.show(score) if self.in_percent else f"{self.name} {self.show(score)}"

    def show_spread(self, deviation: float) -> str:
        """A standard deviation of scores."""
        return f"{100 * deviation:.1f}" if self.in_percent else f"{deviation:.2g}"

    def show_error(self, error: float) -> str:
        """The standard error of a score."""
        return format_percent(error, 2) if self.in_percent else f"{error:.2g}"

    def show_distance(self, ours: float, other: float) -> str:
        """How far two scores are from each other, with the direction."""
        side = self.compare(ours, other)
        points = f"{100 * abs(ours - other):.1f} points" if self.in_percent else f"{abs(ours - other):.3g}"
        return side if side == "close to" else f"{points} {side}"
