"""The axes and the layout that all plots share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import plotly.graph_objects as go

from apportion.report.palette import FONT, GRID, INK, MUTED, PAGE

_AXIS = {
    "gridcolor": GRID,
    "zeroline": False,
    "automargin": True,
    "nticks": 6,
    "ticks": "outside",  # without colour: nothing but a little room between the numbers and the plot
    "ticklen": 6,
    "tickcolor": "rgba(0,0,0,0)",
    "tickfont": {"color": MUTED},
}


def figure(traces: list[Any], x_title: str, y: Mapping[str, Any]) -> Any | None:
    """The plot of these traces, or None when no line is among them."""
    if not any(trace.meta["role"] == "line" for trace in traces):
        return None
    right = max(x for trace in traces for x in trace.x)
    drawn = go.Figure(traces)
    drawn.update_layout(
        template=go.layout.Template(),
        font={"family": FONT, "size": 13, "color": INK},
        margin={"l": 8, "r": 12, "t": 12, "b": 8},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        showlegend=False,  # the page has one legend for all plots
        hovermode="x unified",
        hoverlabel={"bgcolor": PAGE, "bordercolor": GRID, "font": {"family": FONT, "size": 12, "color": INK}},
        xaxis={
            **_AXIS,
            "title": {"text": x_title, "font": {"color": MUTED, "size": 12}, "standoff": 8},
            "showgrid": False,
            "range": [0, 1.02 * right],
        },
        yaxis={**_AXIS, **y},
    )
    return drawn


def shares(traces: Iterable[Any]) -> dict[str, Any]:
    """An axis in percent that leaves out the climb of the first steps: that is where curves are the same, and far below the rest.

    It begins below the lowest value that any line has after its first quarter, in steps of 5 points, or at the lowest value of all.
    """
    found = list(traces)
    values = [y for trace in found for y in trace.y]
    if not values or max(values) - min(values) < 0.01:
        return {"tickformat": ".0%", "range": [0, 1.02]}
    late = min(min(trace.y[len(trace.y) // 4 :]) for trace in found if trace.meta["role"] != "band")
    high = max(values)
    cut = math.floor(20 * (late - 0.02)) / 20
    low = cut if cut > min(values) else min(values) - 0.03 * (high - min(values))
    return {"tickformat": ".0%", "range": [low, high + 0.05 * (high - low)]}


def sizes(low: float, high: float) -> dict[str, Any]:
    """An axis from zero, or a logarithmic one for values that differ by more than a factor of 20."""
    return _decades(low, high) if low > 0 and high / low > 20 else {"rangemode": "tozero"}


def _decades(low: float, high: float) -> dict[str, Any]:
    """A logarithmic axis with its numbers written out: 0.1, 0.2, 0.5, 1, ..."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1, 2, 5) if len(powers) <= 4 else (1,)
    ticks = [float(f"{digit}e{power}") for power in powers for digit in digits]
    shown = [tick for tick in ticks if low / 2 <= tick <= high * 2]
    return {"type": "log", "tickmode": "array", "tickvals": shown, "ticktext": [f"{tick:g}" for tick in shown]}
