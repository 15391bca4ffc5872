"""The parts of a plot: the band and the line of a series, a rule across, a line for one group of parameters.

Every trace says in `meta` which colour it has and which part it plays, so that the page can repaint it for a dark screen and
hide it with its recipe. All names are escaped, because plotly reads a small HTML of its own in labels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from html import escape
from typing import Any

import plotly.graph_objects as go

from apportion.report.curves import Point, thin
from apportion.report.palette import COLOURS, MUTED, RAMP, tint
from apportion.report.series import Series

STRIPE = 9


def band_and_line(
    one: Series,
    points: list[Point],
    colours: Mapping[str, int],
    *,
    hover: str,
    markers: bool = False,
    x: Callable[[Point], float | None] = lambda point: point.step,
) -> list[Any]:
    """The band of a series, when there is more than one value at a step, and its line; nothing when there is no point."""
    points = thin(points)
    if not points:
        return []
    slot = colours.get(one.recipe, 0)
    colour, label = COLOURS[slot][0], escape(one.label)
    across = [_short(found) for point in points if (found := x(point)) is not None]
    traces = []
    if any(point.high > point.low for point in points):
        traces.append(
            go.Scatter(
                x=[*across, *reversed(across)],
                y=[*(_short(point.high) for point in points), *(_short(point.low) for point in reversed(points))],
                mode="lines",
                line={"width": 0, "color": colour},
                fill="toself",
                fillcolor=tint(colour, 0.16),
                hoverinfo="skip",
                name=label,
                meta={"recipe": one.recipe, "slot": slot, "role": "band"},
            )
        )
    dotted = len(points) == 1 or (markers and len(points) <= 40)
    traces.append(
        go.Scatter(
            x=across,
            y=[_short(point.mean) for point in points],
            mode="lines+markers" if dotted else "lines",
            line={"width": 2, "color": colour, "dash": one.dash},
            marker={"size": 8 if len(points) == 1 else 4.5, "color": colour},
            hovertemplate=f"%{{fullData.name}}: {hover}<extra></extra>",
            name=label,
            meta={"recipe": one.recipe, "slot": slot, "role": "line"},
        )
    )
    return traces


def group_line(one: Series, points: list[Point], group: int, of: int) -> Any:
    """The line of one of several groups of parameters, whose colour says how deep in the model it is."""
    points = thin(points)
    return go.Scatter(
        x=[_short(point.step) for point in points],
        y=[_short(point.mean) for point in points],
        mode="lines+markers" if len(points) == 1 else "lines",
        line={"width": 1.75, "color": RAMP[0][0]},
        marker={"size": 8, "color": RAMP[0][0]},
        hovertemplate=f"group {group + 1}: %{{y:.4~g}}<extra></extra>",
        name=f"group {group + 1}",
        meta={"recipe": None, "role": "line", "choice": one.label, "depth": group / (of - 1)},
    )


def rule(recipe: str | None, slot: int | None, level: float, right: float, role: str, label: str) -> Any:
    """A line straight across: the budget, or the accuracy without privacy."""
    return go.Scatter(
        x=[0, right],
        y=[_short(level)] * 2,
        mode="lines",
        line={
            "width": 1.5,
            "dash": "dash" if role == "budget" else "dot",
            "color": MUTED if slot is None else COLOURS[slot][0],
        },
        hovertemplate=f"{escape(label)}<extra></extra>",
        name=escape(label),
        meta={"recipe": recipe, "slot": slot, "role": role},
    )


def striped(traces: list[Any]) -> list[Any]:
    """Let lines of several recipes that coincide take turns, so that the last one does not hide the others."""
    alike: dict[Any, list[Any]] = defaultdict(list)
    for trace in traces:
        if trace.meta["role"] == "line":
            alike[tuple((x, float(f"{y:.3g}")) for x, y in zip(trace.x, trace.y, strict=True))].append(trace)
    for group, same in enumerate(alike.values()):
        if len(same) < 2 or len({trace.meta["recipe"] for trace in same}) < len(same):
            continue
        for place, trace in enumerate(same):
            trace.meta = {**trace.meta, "twins": group}
            if place:
                trace.line.dash = f"{STRIPE * (len(same) - place)}px,{STRIPE * place}px"
    return traces


def _short(value: float) -> float:
    return float(f"{value:.7g}")
