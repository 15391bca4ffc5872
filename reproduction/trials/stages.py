"""Which trials are run next, and which one wins: all of them briefly, and the best of these at full length.

The last stage is always a run as it is judged. Earlier ones are the same runs, stopped after some epochs of their own plan, so that a
trial has the noise of its full length from the beginning.

Source: Jamieson and Talwalkar, Non-stochastic best arm identification and hyperparameter optimization, 2016 (successive halving).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reproduction.trials.design import Design, Judge, Method, Trial
    from reproduction.trials.kept import KeptTrials

NEVER_BETTER = 1e9
"""By so much no accuracy is better than another."""


@dataclass(frozen=True)
class Stage:
    """Runs of one length.

    Args:
        stop_after: a run is stopped after so many measurements; `None` is its full length.
        keep: how many of the best go on to the next stage.
        every: when it is measured: a number of steps, or of epochs in words.
    """

    stop_after: int | None
    keep: int
    every: str | int = "1 epoch"

    @property
    def settings(self) -> dict[str, Any]:
        """Those that stop a run: no measurement after the first counts as better."""
        if self.stop_after is None:
            return {}
        return {"evaluate_every": self.every, "patience": self.stop_after - 1, "min_delta": NEVER_BETTER}

    def __str__(self) -> str:
        every = self.every if isinstance(self.every, str) else f"{self.every} steps"
        return "at full length" if self.stop_after is None else f"stopped after {self.stop_after} times {every}"


@dataclass(frozen=True)
class Winner:
    """The best trial of a method, and its place.

    Args:
        edge: whether it has the first or the last of the values that its variant tried, so that the best may lie beyond.
    """

    choice: dict[str, Any]
    number: int
    score: float
    edge: bool


def find_winner(design: Design, judge: Judge, method: Method, kept: KeptTrials) -> Winner | None:
    """The trial of the last stage with the highest mean accuracy over the data to choose on, the first of equals; `None` if trials are
    missing."""
    numbers, stage = _reached(design, judge, method, kept)
    if stage is not None:
        return None
    best = numbers[0]
    score = _score(design.trials_of(judge, method, best, design.stages[-1]), kept) or 0.0
    return Winner(method.choices[best - 1], best, score, best in method.edges)


def missing_trials(design: Design, judge: Judge, method: Method, kept: KeptTrials) -> list[Trial]:
    """Those of the first stage that is not complete; none if a winner is known. What comes after them depends on them."""
    numbers, stage = _reached(design, judge, method, kept)
    if stage is None:
        return []
    found = [trial for number in numbers for trial in design.trials_of(judge, method, number, stage)]
    return [trial for trial in found if trial.key not in kept.found]


def _reached(design: Design, judge: Judge, method: Method, kept: KeptTrials) -> tuple[Sequence[int], Stage | None]:
    """The trials that are left, the best first, and the stage that they are in; no stage if all have been run."""
    numbers: Sequence[int] = range(1, len(method.choices) + 1)
    for stage in design.stages:
        scores = {number: _score(design.trials_of(judge, method, number, stage), kept) for number in numbers}
        if any(score is None for score in scores.values()):
            return numbers, stage
        numbers = sorted(numbers, key=lambda number, scores=scores: (-scores[number], number))[: stage.keep]  # type: ignore[misc]
    return numbers, None


def _score(trials: Sequence[Trial], kept: KeptTrials) -> float | None:
    """The mean accuracy, that of a refused or diverged run being 0; `None` if one is missing."""
    entries = [kept.found.get(trial.key) for trial in trials]
    if any(entry is None for entry in entries):
        return None
    return sum((entry or {}).get("accuracy") or 0.0 for entry in entries) / len(entries)
