"""The data of the curves: the histories of several seeds reduced to one point for each step, and what an accuracy costs."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from apportion.reporting.formatting import DASH, format_count, format_epochs, format_epsilon, format_percent
from apportion.reporting.result import HistoryEntry, RunResult
from apportion.reporting.series import Series, mean

Value = Callable[[HistoryEntry], float | Sequence[float] | None]
EPSILON, CLIP, MULTIPLIER = attrgetter("epsilon"), attrgetter("clip"), attrgetter("noise_multiplier")

MOST_POINTS = 400


@dataclass(frozen=True)
class Point:
    """One step of a series: the mean over its seeds, the lowest and highest of them, and the most that one had spent by then."""

    step: int
    mean: float
    low: float
    high: float
    seeds: int
    epsilon: float | None = None


def make_curve(runs: Iterable[RunResult], value: Value) -> list[Point]:
    """One point for each step at which at least one seed has a value. Of several values of a seed the mean counts; low and high
    reach over all of them.
    """
    means, seen, spent = (defaultdict[int, list[float]](list) for _ in range(3))
    for run in runs:
        for entry in run.history:
            found = value(entry)
            values = [found] if isinstance(found, (int, float)) else list(found or ())
            if (average := mean(values)) is None:
                continue
            means[entry.step].append(average)
            seen[entry.step] += values
            if entry.epsilon is not None:
                spent[entry.step].append(entry.epsilon)
    return [
        Point(step, mean(of) or 0.0, min(seen[step]), max(seen[step]), len(of), max(spent[step], default=None))
        for step, of in sorted(means.items())
    ]


def make_score_curve(one: Series) -> list[Point]:
    """The scores of a series at the steps where they were measured."""
    metric = one.measure.name
    return make_curve(one.runs, lambda entry: entry.score(metric))


def count_groups(runs: Iterable[RunResult]) -> int:
    """How many groups of parameters have a threshold of their own."""
    return max((len(entry.clip) for run in runs for entry in run.history), default=0)


def thin(points: list[Point]) -> list[Point]:
    """Keep at most MOST_POINTS points, the first and the last among them."""
    if len(points) <= MOST_POINTS:
        return points
    stride = (len(points) - 1) / (MOST_POINTS - 1)
    return [points[round(index * stride)] for index in range(MOST_POINTS)]


def find_costs(series: Sequence[Series], colours: Mapping[str, int]) -> dict[str, Any] | None:
    """At which step each series first reaches an accuracy, after how many epochs, for which ε.

    The reader chooses the accuracy, so the page does the looking-up; this is the data that it looks up in. Only steps at which every
    seed was measured count: a mean over fewer seeds could be above the mean over all of them by chance. Only of accuracy: other metrics
    have no common scale to choose from.
    """
    found = []
    for one in series:
        points = make_score_curve(one) if one.measure.in_percent else []
        whole = [point for point in points if point.seeds == max(point.seeds for point in points)]
        if whole:
            found.append((one, whole))
    if not found:
        return None
    best = [max(point.mean for point in points) for _, points in found]
    return {
        "start": math.floor(1000 * statistics.median_low(best)) / 10,
        "low": max(0, math.floor(100 * min(best)) - 20),  # below that, every series is on its first climb
        "high": math.ceil(100 * max(best)),
        "rows": [
            {
                "label": one.label,
                "slot": colours.get(one.recipe, 0),
                "private": one.status != "none",
                "best": format_percent(max(point.mean for point in points)),
                "points": [_write_cost(one, point) for point in points],
            }
            for one, points in found
        ],
    }


def _write_cost(one: Series, point: Point) -> dict[str, Any]:
    """ε and epochs are written here, where the rules for rounding are."""
    rate = next(iter(one.known(lambda run: run.sample_rate)), None)
    return {
        "accuracy": point.mean,
        "spent": point.epsilon,
        "step": format_count(point.step),
        "epochs": DASH if rate is None else format_epochs(point.step * rate),
        "epsilon": "no privacy" if one.status == "none" else format_epsilon(point.epsilon),
    }
