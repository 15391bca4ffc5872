"""Captions: what there is to see in each figure, for those who look and for those who listen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apportion.report.curves import curve, entry_value, groups
from apportion.report.series import Series, accuracy
from apportion.report.words import number, percent

MOST_NAMED = 4


def of_accuracy(series: Sequence[Series], figure: Any) -> str:
    """Who ends where."""
    measured = sorted((one for one in series if one.accuracy is not None), key=accuracy, reverse=True)
    said = [f"{one.label} {percent(one.accuracy)}" for one in measured]
    return f"Higher is better. At the end: {_first(said, ', ')}.{_cut(figure)}"


def of_tradeoff(series: Sequence[Series], figure: Any) -> str:
    """Which corner is the good one."""
    free = any(one.status == "none" and one.accuracy is not None for one in series)
    line = " The dotted line is where training without privacy ends." if free else ""
    return f"Up and to the left is better: more accuracy for less privacy spent.{line}{_cut(figure)}"


def of_spending(series: Sequence[Series], figure: Any) -> str:
    """Whether budgets were kept."""
    runs = [run for one in series for run in one.runs]
    pairs = [(number(run.get("epsilon")), number(run.get("target_epsilon"))) for run in runs]
    held = [(spent, target) for spent, target in pairs if spent is not None and target is not None]
    over = sum(spent > target for spent, target in held)
    said = "The privacy spent can only grow, step by step."
    if not held:
        return said
    if over:
        return f"{said} {over} of {len(held)} runs end above their budget, the dashed line."
    return f"{said} Every run ends at or below its budget, the dashed line."


def of_clip(series: Sequence[Series], figure: Any) -> str:
    """How the thresholds move."""
    return _of_setting(series, "clip", "The largest length that the gradient of one record may keep:")


def of_noise(series: Sequence[Series], figure: Any) -> str:
    """How the multipliers move."""
    return _of_setting(series, "noise_multiplier", "The noise, as a multiple of the clip threshold:")


def of_groups(series: Sequence[Series], figure: Any) -> str:
    """What a group is."""
    return (
        "The threshold of each group of parameters, from the first group in the model to the last; the mean over seeds. "
        "The gradient of one record is clipped in each group by itself."
    )


def _of_setting(series: Sequence[Series], key: str, meaning: str) -> str:
    said = []
    for one in series:
        values = [point.mean for point in curve(one.runs, entry_value(key))]
        if not values:
            continue
        first, last = f"{values[0]:.3g}", f"{values[-1]:.3g}"
        moves = f"goes from {first} to {last}" if f"{min(values):.3g}" != f"{max(values):.3g}" else f"stays at {first}"
        average = ", on average over its groups" if groups(one.runs, key) > 1 else ""
        said.append(f"{one.label} {moves}{average}")
    return f"{meaning} {_first(said, '; ')}."


def _first(said: Sequence[str], comma: str) -> str:
    """The first few, and how many more there are."""
    more = len(said) - MOST_NAMED
    return comma.join([*said[:MOST_NAMED], *([f"and {more} more"] if more > 0 else [])])


def _cut(figure: Any) -> str:
    bottom = figure.layout.yaxis.range[0]
    hidden = any(y < bottom for trace in figure.data for y in trace.y)
    return f" What is below {percent(max(bottom, 0), 0)} is cut off." if hidden else ""
