"""How everything is drawn: one style for figures and axes, the parts of a plot, and a page that needs no network.

In a figure of the report, every trace says in `meta` which colour it has and which part it plays, so that the page can repaint it for
a dark screen and hide it with its recipe. All names are escaped, because plotly reads a small HTML of its own in labels.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from apportion.errors import InvalidArgument
from apportion.extras import require_extra
from apportion.reporting.curves import Point, thin
from apportion.reporting.palette import COLOURS, FONT, GRID, INK, MUTED, PAGE, RAMP, choose_colour, make_tint
from apportion.reporting.series import Series

try:
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots
except ImportError:
    require_extra("report", "plotly")
    raise

Curve = tuple[str, Iterable[tuple[float, float | None]]]
STRIPE = 9
_CLEAR = "rgba(0,0,0,0)"
_LABEL = {"color": MUTED, "size": 12}
_AXIS = {
    "gridcolor": GRID,
    "zeroline": False,
    "automargin": True,
    "nticks": 6,
    "ticks": "outside",  # without colour: nothing but a little room between the numbers and the plot
    "ticklen": 6,
    "tickcolor": _CLEAR,
    "tickfont": {"color": MUTED},
}


# Figures and pages


def style_figure(figure: Any) -> Any:
    """Give any figure the type, the colours and the axes that all of them share."""
    figure.update_layout(
        template=go.layout.Template(),
        font={"family": FONT, "size": 13, "color": INK},
        margin={"l": 8, "r": 12, "t": 12, "b": 8},
        paper_bgcolor=_CLEAR,
        plot_bgcolor=_CLEAR,
        showlegend=False,
        hovermode="x unified",
        hoverlabel={"bgcolor": PAGE, "bordercolor": GRID, "font": {"family": FONT, "size": 12, "color": INK}},
    )
    figure.update_xaxes(**_AXIS, showgrid=False)
    figure.update_yaxes(**_AXIS)
    return figure


def make_page_figure(title: str, panels: Sequence[str] = ("",), widths: Sequence[float] | None = None) -> Any:
    """An empty figure that fills a page of its own: a title, and `panels` side by side with a legend below."""
    figure = style_figure(make_subplots(rows=1, cols=len(panels), subplot_titles=panels, column_widths=widths))
    figure.update_annotations(font={"size": 14})
    figure.update_layout(
        title={"text": title, "x": 0, "xref": "paper"},
        modebar={
            "bgcolor": _CLEAR,
            "color": MUTED,
            "activecolor": INK,
        },  # on a page without colour it would be a grey bar
        margin={"l": 24, "r": 24, "t": 96 + 24 * title.count("<br>"), "b": 24},
        showlegend=True,
        legend={
            "orientation": "h",
            "yref": "container",
            "yanchor": "bottom",
            "y": 0.02,
        },  # below the titles of the axes
    )
    figure.update_xaxes(title={"font": _LABEL, "standoff": 8})
    return figure


def write_schedules(title: str, panels: Mapping[str, Sequence[Curve]], out: Path, *, legend: bool = True) -> Path:
    """Write a page with curves over the steps, each by its name, and a panel for each quantity."""
    figure = make_page_figure(title, tuple(panels))
    for column, curves in enumerate(panels.values(), start=1):
        lines = [draw_line(name, points, number) for number, (name, points) in enumerate(curves)]
        figure.add_traces(stripe_coinciding(lines), rows=1, cols=column)
        figure.update_traces(showlegend=legend and column == 1, row=1, col=column)
    figure.update_xaxes(title="step")
    figure.update_yaxes(rangemode="tozero")
    return write_page(figure, out, "html")


def write_page(figure: Any, out: Path | str, argument: str) -> Path:
    """Write `figure` to `out`. `argument` is what the person called the file, for the message that it cannot be written."""
    try:
        figure.write_html(out, include_plotlyjs=True, full_html=True, config={"displaylogo": False})
    except OSError as error:
        reason = f"it cannot be written: {error.strerror}"
        raise InvalidArgument(argument, str(out), reason, "Choose another file") from error
    return Path(out)


def make_figure(traces: list[Any], x_title: str, y: Mapping[str, Any]) -> Any | None:
    """A figure of the report, whose page has one legend for all of them; None when no line is among the traces."""
    if not any(trace.meta["role"] == "line" for trace in traces):
        return None
    right = max(x for trace in traces for x in trace.x)
    figure = style_figure(go.Figure(traces))
    figure.update_xaxes(title={"text": x_title, "font": _LABEL, "standoff": 8}, range=[0, 1.02 * right])
    return figure.update_yaxes(**y)


# Axes


def fit_percent_axis(traces: Iterable[Any]) -> dict[str, Any]:
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


def fit_size_axis(low: float, high: float) -> dict[str, Any]:
    """An axis from zero, or a logarithmic one with its numbers written out for values that differ by more than a factor of 20."""
    if not (low > 0 and high / low > 20):
        return {"rangemode": "tozero"}
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1, 2, 5) if len(powers) <= 4 else (1,)
    ticks = [float(f"{digit}e{power}") for power in powers for digit in digits]
    shown = [tick for tick in ticks if low / 2 <= tick <= high * 2]
    return {"type": "log", "tickmode": "array", "tickvals": shown, "ticktext": [f"{tick:g}" for tick in shown]}


# The parts of a plot


def _trace(x: Any, y: Any, colour: str, name: str, meta: Mapping[str, Any], **style: Any) -> Any:
    """A line of width 2, or what `style` makes of it: `width` and `dash` of the line, and anything that plotly knows."""
    line = {"color": colour, "width": style.pop("width", 2), "dash": style.pop("dash", None)}
    return go.Scatter(**{"x": x, "y": y, "mode": "lines", "line": line, "name": escape(name), "meta": meta} | style)


def draw_line(name: str, points: Iterable[tuple[float, float | None]], number: int) -> Any:
    """A line through points, with a gap where there is no value, in the colour of its number; lines of one name share their legend."""
    x, y = zip(*points, strict=True)
    meta = {"recipe": name, "slot": number, "role": "line"}
    return _trace(x, y, choose_colour(number), name, meta, legendgroup=escape(name))


def draw_series(
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
    colour, meta = COLOURS[slot][0], {"recipe": one.recipe, "slot": slot}
    across = [_short(found) for point in points if (found := x(point)) is not None]
    traces = []
    if any(point.high > point.low for point in points):
        there, back = [*across, *reversed(across)], [_short(point.low) for point in reversed(points)]
        filled = {"fill": "toself", "fillcolor": make_tint(colour, 0.16), "hoverinfo": "skip"}
        outline = [*(_short(point.high) for point in points), *back]
        traces = [_trace(there, outline, colour, one.label, meta | {"role": "band"}, width=0, **filled)]
    middle = _trace(
        across,
        [_short(point.mean) for point in points],
        colour,
        one.label,
        meta | {"role": "line"},
        dash=one.dash,
        mode="lines+markers" if len(points) == 1 or (markers and len(points) <= 40) else "lines",
        marker={"size": 8 if len(points) == 1 else 4.5, "color": colour},
        hovertemplate=f"%{{fullData.name}}: {hover}<extra></extra>",
    )
    return [*traces, middle]


def draw_group(one: Series, points: list[Point], group: int, of: int, name: str = "") -> Any:
    """The line of one of several groups: of parameters, whose colour says how deep in the model it is, or of people, by their name."""
    points, colour, name = thin(points), RAMP[0][0], name or f"group {group + 1}"
    return _trace(
        [_short(point.step) for point in points],
        [_short(point.mean) for point in points],
        colour,
        name,
        {"recipe": None, "role": "line", "choice": one.label, "depth": group / max(1, of - 1)},
        width=1.75,
        mode="lines+markers" if len(points) == 1 else "lines",
        marker={"size": 8, "color": colour},
        hovertemplate=f"{escape(name)}: %{{y:.4~g}}<extra></extra>",
    )


def draw_level(recipe: str | None, slot: int | None, level: float, right: float, role: str, label: str) -> Any:
    """A line straight across: the budget, or the accuracy without privacy."""
    colour, meta = MUTED if slot is None else COLOURS[slot][0], {"recipe": recipe, "slot": slot, "role": role}
    style = {"width": 1.5, "dash": "dash" if role == "budget" else "dot"}
    hover = f"{escape(label)}<extra></extra>"
    return _trace([0, right], [_short(level)] * 2, colour, label, meta, hovertemplate=hover, **style)


def label_level(figure: Any, level: float, text: str) -> None:
    """Write `text` above a line straight across, at its left end."""
    place = {"x": 0, "xref": "paper", "xanchor": "left", "xshift": 4, "y": level, "yanchor": "bottom"}
    figure.add_annotation(text=text, **place, showarrow=False, font=_LABEL)


def stripe_coinciding(traces: list[Any]) -> list[Any]:
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
