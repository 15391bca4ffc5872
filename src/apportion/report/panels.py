"""The plots of the report: pure functions from series to a plotly figure, or to None when there is nothing to draw.

The line of a series is the mean over its seeds, its band reaches from the lowest to the highest. One recipe has one colour in all
figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from apportion.report import axes
from apportion.report.curves import Point, curve, entry_value, groups, measured_accuracy, over_groups
from apportion.report.palette import MUTED
from apportion.report.series import Series
from apportion.report.traces import band_and_line, group_line, rule, striped
from apportion.report.words import percent

Colours = Mapping[str, int]


def accuracy_by_steps(series: Sequence[Series], colours: Colours) -> Any | None:
    """Test accuracy at the steps where it was measured."""
    traces: list[Any] = []
    for one in series:
        points = curve(one.runs, measured_accuracy)
        traces += band_and_line(one, points, colours, hover="%{y:.1%}", markers=True)
    return axes.figure(traces, "step", y=axes.shares(traces))


def accuracy_by_epsilon(series: Sequence[Series], colours: Colours) -> Any | None:
    """Test accuracy against the ε spent so far; non-private training, which has no ε, is a dotted line across."""
    traces: list[Any] = []
    for one in series:
        points = [point for point in curve(one.runs, measured_accuracy) if point.epsilon is not None]
        hover = "%{y:.1%} at ε = %{x:.3~f}"
        traces += band_and_line(one, points, colours, hover=hover, markers=True, x=lambda point: point.epsilon)
    if not traces:
        return None
    right = max(x for trace in traces for x in trace.x)
    for one in series:
        if one.status == "none" and one.accuracy is not None:
            label = f"{one.label}: {percent(one.accuracy)}"
            traces.append(rule(one.recipe, colours.get(one.recipe, 0), one.accuracy, right, "reference", label))
    figure = axes.figure(traces, "ε spent", y=axes.shares(traces))
    return None if figure is None else figure.update_layout(hovermode="closest")


def epsilon_by_steps(series: Sequence[Series], colours: Colours) -> Any | None:
    """The ε spent so far, with each budget as a dashed line."""
    traces: list[Any] = []
    targets: set[float] = set()
    for one in series:
        drawn = band_and_line(one, curve(one.runs, entry_value("epsilon")), colours, hover="ε = %{y:.3~f}")
        traces += drawn
        if drawn and one.target is not None:
            targets.add(one.target)
    if not traces:
        return None
    right = max(x for trace in traces for x in trace.x)
    traces += [rule(None, None, target, right, "budget", f"budget: ε = {target:g}") for target in sorted(targets)]
    figure = axes.figure(striped(traces), "step", y={"rangemode": "tozero"})
    if figure is None:
        return None
    for target in sorted(targets):
        figure.add_annotation(
            text=f"budget ε = {target:g}",
            x=0,
            xref="paper",
            xanchor="left",
            xshift=4,
            y=target,
            yanchor="bottom",
            showarrow=False,
            font={"color": MUTED, "size": 12},
        )
    return figure


def clip_by_steps(series: Sequence[Series], colours: Colours) -> Any | None:
    """The clip threshold; of several groups of parameters their mean, in a band from the smallest to the largest."""
    return _setting_by_steps(series, "clip", colours)


def noise_by_steps(series: Sequence[Series], colours: Colours) -> Any | None:
    """The noise multiplier."""
    return _setting_by_steps(series, "noise_multiplier", colours)


def clip_by_groups(series: Sequence[Series], colours: Colours) -> Any | None:
    """The threshold of each group of parameters, for the one series that the reader chooses; means over seeds."""
    traces: list[Any] = []
    drawn: list[Point] = []
    for one in series:
        several = groups(one.runs, "clip")
        for group in range(several if several > 1 else 0):
            points = curve(one.runs, entry_value("clip", group))
            traces += [group_line(one, points, group, several)] if points else []
            drawn += points
    if not drawn:
        return None
    return axes.figure(traces, "step", y=axes.sizes(min(one.mean for one in drawn), max(one.mean for one in drawn)))


def _setting_by_steps(series: Sequence[Series], key: str, colours: Colours) -> Any | None:
    traces: list[Any] = []
    drawn: list[Point] = []
    for one in series:
        points = over_groups(one.runs, key)
        traces += band_and_line(one, points, colours, hover="%{y:.4~g}")
        drawn += points
    if not drawn:
        return None
    scale = axes.sizes(min(point.low for point in drawn), max(point.high for point in drawn))
    return axes.figure(striped(traces), "step", y=scale)
