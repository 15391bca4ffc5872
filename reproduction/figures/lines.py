"""From runs to lines: a mean and a band over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from apportion.reporting.result import HistoryEntry, RunResult
from reproduction.figures.chart import Series
from reproduction.figures.kept_results import Cell, StudyFile


def over_time(
    name: str,
    runs: Sequence[RunResult],
    value: Callable[[HistoryEntry], float | None],
    *,
    by_epoch: bool = True,
    positive: bool = False,
) -> Series | None:
    """The mean of a value over the seeds, with a band from the least to the most; `None` if no run has it.

    x is the step, or with `by_epoch` the share of the data seen: step·q. With `positive` other values are left out, for a
    logarithmic axis.
    """
    found: dict[float, list[float]] = {}
    for run in runs:
        rate = run.sample_rate if by_epoch else 1.0
        for entry in run.history:
            number = value(entry)
            if number is not None and rate is not None and (number > 0 or not positive):
                found.setdefault(entry.step * rate, []).append(number)
    return _series(name, found)


def dotted_line(name: str, pairs: Iterable[tuple[float, float | None]], *, dashed: bool = False) -> Series | None:
    """A line with dots through pairs, of which those without y are left out; a dashed one needs no name of its own."""
    points = sorted((x, y) for x, y in pairs if y is not None)
    return Series(name, tuple(points), dots=True, dashed=dashed, quiet=dashed) if points else None


def setting(run: RunResult, role: str, name: str) -> float | str | None:
    """What the strategy of a role was set to, where it has such a setting."""
    strategy = run.details.get(role)
    return strategy.get(name) if isinstance(strategy, dict) else None


def percent(value: float | None) -> float | None:
    """A share as people say it."""
    return None if value is None else 100 * value


def accuracy(cell: Cell) -> float | None:
    return percent(cell.test_accuracy)


def drop_missing(series: Iterable[Series | None]) -> tuple[Series, ...]:
    """Those that there are."""
    return tuple(one for one in series if one is not None)


def runs_for_each_dot(study: StudyFile) -> str:
    """How much chance is in a picture of means."""
    seeds = min((len(cell.seeds) for cell in study.cells), default=0)
    return (
        "One run for each dot: a few tenths of a point are chance." if seeds < 2 else f"Means of {seeds} runs or more."
    )


def _series(name: str, found: dict[float, list[float]]) -> Series | None:
    if not found:
        return None
    points = tuple((x, statistics.fmean(values)) for x, values in sorted(found.items()))
    several = any(len(values) > 1 for values in found.values())
    band = tuple((x, min(values), max(values)) for x, values in sorted(found.items())) if several else ()
    return Series(name, points, band)
