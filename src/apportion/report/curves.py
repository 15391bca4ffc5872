"""The data of the curves: the histories of several seeds reduced to one point for each step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from apportion.report.series import Run, mean
from apportion.report.words import number, share

Value = Callable[[Mapping[str, Any]], float | None]

MOST_POINTS = 400


@dataclass(frozen=True)
class Point:
    """One step of a series: the mean over its seeds, the lowest and highest of them, and the most that one had spent by then."""

    step: float
    mean: float
    low: float
    high: float
    seeds: int
    epsilon: float | None = None


def curve(runs: Iterable[Run], value: Value) -> list[Point]:
    """One point for each step at which at least one seed has a value."""
    values: dict[float, list[float]] = defaultdict(list)
    spent: dict[float, list[float]] = defaultdict(list)
    for run in runs:
        for entry in run.get("history") or ():
            step, found, epsilon = number(entry.get("step")), value(entry), number(entry.get("epsilon"))
            if step is None or found is None:
                continue
            values[step].append(found)
            if epsilon is not None:
                spent[step].append(epsilon)
    return [
        Point(step, mean(seen) or 0.0, min(seen), max(seen), len(seen), max(spent[step], default=None))
        for step, seen in sorted(values.items())
    ]


def entry_value(key: str, group: int | None = None) -> Value:
    """Read `key` of a history entry; of a list (several groups of parameters) read one group, or the mean over them."""

    def value(entry: Mapping[str, Any]) -> float | None:
        found = entry.get(key)
        if not isinstance(found, (list, tuple)):
            return number(found) if not group else None
        if group is not None:
            return number(found[group]) if group < len(found) else None
        return mean([one for one in map(number, found) if one is not None])

    return value


def measured_accuracy(entry: Mapping[str, Any]) -> float | None:
    """Read the accuracy of a history entry."""
    return share(entry.get("test_accuracy"))


def over_groups(runs: Iterable[Run], key: str) -> list[Point]:
    """The mean over seeds and groups of parameters; low and high reach over all groups of all seeds."""
    runs = list(runs)
    seen: dict[float, list[float]] = defaultdict(list)
    for run in runs:
        for entry in run.get("history") or ():
            step, found = number(entry.get("step")), entry.get(key)
            if step is not None and isinstance(found, (list, tuple)):
                seen[step] += [one for one in map(number, found) if one is not None]
    return [
        replace(point, low=min([point.low, *seen[point.step]]), high=max([point.high, *seen[point.step]]))
        for point in curve(runs, entry_value(key))
    ]


def groups(runs: Iterable[Run], key: str) -> int:
    """How many groups of parameters the histories have a value of `key` for."""
    found = (entry.get(key) for run in runs for entry in run.get("history") or ())
    return max((len(value) if isinstance(value, (list, tuple)) else 1 for value in found), default=0)


def thin(points: list[Point]) -> list[Point]:
    """Keep at most MOST_POINTS points, the first and the last among them."""
    if len(points) <= MOST_POINTS:
        return points
    stride = (len(points) - 1) / (MOST_POINTS - 1)
    return [points[round(index * stride)] for index in range(MOST_POINTS)]
