"""The plots of the report: pure functions from runs to a plotly figure, or to None when there is nothing to draw.

A series is all the seeds of one recipe at one budget: its line is the mean over seeds, its band reaches from the lowest seed
to the highest. One recipe has one colour in all figures. Every trace says in `meta` which colour slot it belongs to and
which part it plays, so that the page can repaint it for a dark screen and hide it with its recipe.

All names that reach plotly are escaped, because plotly reads a small HTML of its own in labels.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import plotly.graph_objects as go

Run = Mapping[str, Any]
Value = Callable[[Mapping[str, Any]], float | None]

# (on a light page, on a dark page). Slot 0 is the grey of non-private training. Slots 1 to 6 have the hues of the colour-blind
# safe palette of Okabe and Ito, a little darker or lighter to stand out from the page, without its black and yellow, which
# vanish on one of the two pages. The rest is from the muted palette of Tol.
COLOURS: tuple[tuple[str, str], ...] = (
    ("#6b7280", "#a3abb8"),
    ("#0072b2", "#4aa8e0"),
    ("#d55e00", "#f0803c"),
    ("#009e73", "#2fc49b"),
    ("#b8588c", "#dd94bb"),
    ("#c98a00", "#eab63c"),
    ("#3a9bd9", "#8fcdf5"),
    ("#332288", "#9d8fe6"),
    ("#882255", "#d9749f"),
    ("#117733", "#5fbf7f"),
    ("#7a7a22", "#c2c25a"),
)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
MOST_POINTS = 1200
MOST_GROUPS = 5
STRIPE = 9
INK, MUTED, GRID, PAGE = "#1f2430", "#667085", "#e8eaee", "#ffffff"


@dataclass(frozen=True)
class Series:
    """All seeds of one recipe at one budget, on one data set with one model."""

    recipe: str
    target: float | None
    label: str
    dash: str
    runs: tuple[Run, ...]

    @property
    def private(self) -> bool:
        """Whether these runs have an ε (a seeded run has one too, although it protects nobody)."""
        return any(number(run.get("epsilon")) is not None or number(run.get("target_epsilon")) for run in self.runs)


@dataclass(frozen=True)
class Point:
    """One step of a series: the mean over its seeds, and the lowest and highest of them."""

    step: float
    mean: float
    low: float
    high: float
    epsilon: float | None = None


def number(value: Any) -> float | None:
    """Return `value` as a finite float, or None where there is no such number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:  # an integer beyond all floats
        return None
    return found if math.isfinite(found) else None


def slots(runs: Iterable[Run]) -> dict[str, int]:
    """Give every recipe, in order of appearance, its slot in COLOURS; the first one without privacy gets the grey."""
    private: dict[str, bool] = {}
    for run in runs:
        name = str(run.get("recipe", ""))
        private[name] = private.get(name, False) or number(run.get("epsilon")) is not None
    grey = next((name for name, has_epsilon in private.items() if not has_epsilon), None)
    coloured = [name for name in private if name != grey]
    given = {name: 1 + index % (len(COLOURS) - 1) for index, name in enumerate(coloured)}
    return {name: given.get(name, 0) for name in private}


def series(runs: Iterable[Run]) -> list[Series]:
    """Group runs into series; with several budgets, the label names the budget and each budget has its own dash."""
    grouped: dict[tuple[str, float | None], list[Run]] = defaultdict(list)
    for run in runs:
        grouped[str(run.get("recipe", "")), number(run.get("target_epsilon"))].append(run)
    targets = sorted({target for _, target in grouped if target is not None})
    found = []
    for (recipe, target), members in grouped.items():
        several = len(targets) > 1 and target is not None
        dash = DASHES[targets.index(target) % len(DASHES)] if several and target is not None else "solid"
        found.append(Series(recipe, target, f"{recipe} (ε = {target:g})" if several else recipe, dash, tuple(members)))
    return found


def curve(runs: Iterable[Run], value: Value) -> list[Point]:
    """Reduce the histories of several seeds to one point for each step at which at least one of them has a value."""
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
        Point(step, _mean(seen), min(seen), max(seen), _mean(spent[step]) if spent[step] else None)
        for step, seen in sorted(values.items())
    ]


def entry_value(key: str, group: int | None = None) -> Value:
    """Read `key` of a history entry; of a list (several groups of parameters) read one group, or its mean."""

    def value(entry: Mapping[str, Any]) -> float | None:
        found = entry.get(key)
        if not isinstance(found, (list, tuple)):
            return number(found) if not group else None
        if group is not None:
            return number(found[group]) if group < len(found) else None
        known = [one for one in map(number, found) if one is not None]
        return _mean(known) if known else None

    return value


def accuracy_by_steps(runs: Sequence[Run], colours: Mapping[str, int] | None = None) -> Any | None:
    """Test accuracy at the steps where it was measured."""
    chosen = slots(runs) if colours is None else colours
    traces: list[Any] = []
    for one in series(runs):
        points = curve(one.runs, entry_value("test_accuracy"))
        traces += _line(one, points, chosen, hover="%{y:.1%}", markers=True)
    return _figure(traces, "step", y=_shares(traces))


def accuracy_by_epsilon(runs: Sequence[Run], colours: Mapping[str, int] | None = None) -> Any | None:
    """Test accuracy against the ε spent so far; non-private training, which has no ε, is a dotted line across."""
    chosen = slots(runs) if colours is None else colours
    traces: list[Any] = []
    for one in series(runs):
        points = [point for point in curve(one.runs, entry_value("test_accuracy")) if point.epsilon is not None]
        hover = "%{y:.1%} at ε = %{x:.3~f}"
        traces += _line(one, points, chosen, hover=hover, markers=True, x=lambda point: point.epsilon)
    if not traces:
        return None
    right = max(x for trace in traces for x in trace.x)
    for one in series(runs):
        last = [found for run in one.runs if (found := final_accuracy(run)) is not None]
        if not one.private and last:
            level = _mean(last)
            traces.append(_rule(one.recipe, chosen, level, 0, right, "reference", f"{escape(one.label)}: %{{y:.1%}}"))
    figure = _figure(traces, "ε spent", y=_shares(traces))
    return None if figure is None else figure.update_layout(hovermode="closest")


def epsilon_by_steps(runs: Sequence[Run], colours: Mapping[str, int] | None = None) -> Any | None:
    """The ε spent so far, with each budget as a dashed line."""
    chosen = slots(runs) if colours is None else colours
    traces: list[Any] = []
    targets: set[float] = set()
    for one in series(runs):
        drawn = _line(one, curve(one.runs, entry_value("epsilon")), chosen, hover="ε = %{y:.3~f}")
        traces += drawn
        if drawn and one.target is not None:
            targets.add(one.target)
    if not traces:
        return None
    right = max(x for trace in traces for x in trace.x)
    for target in sorted(targets):
        traces.append(_rule(None, chosen, target, 0, right, "budget", f"budget: ε = {target:g}"))
    figure = _figure(_striped(traces), "step", y={"rangemode": "tozero"})
    if figure is None:
        return None
    for target in sorted(targets):
        figure.add_annotation(
            text=f"budget ε = {target:g}",
            x=1,
            xref="paper",
            xanchor="right",
            xshift=-4,
            y=target,
            yanchor="bottom",
            showarrow=False,
            font={"color": MUTED, "size": 12},
        )
    return figure


def clip_by_steps(runs: Sequence[Run], colours: Mapping[str, int] | None = None) -> Any | None:
    """The clip threshold; with a threshold for each group of parameters, a line for each, or a band when they are many."""
    return _setting_by_steps(runs, "clip", colours)


def noise_by_steps(runs: Sequence[Run], colours: Mapping[str, int] | None = None) -> Any | None:
    """The noise multiplier."""
    return _setting_by_steps(runs, "noise_multiplier", colours)


def final_accuracy(run: Run) -> float | None:
    """The test accuracy of a run, or the last one of its history."""
    measured = [number(entry.get("test_accuracy")) for entry in run.get("history") or ()]
    return next((one for one in (number(run.get("test_accuracy")), *reversed(measured)) if one is not None), None)


def _setting_by_steps(runs: Sequence[Run], key: str, colours: Mapping[str, int] | None) -> Any | None:
    chosen = slots(runs) if colours is None else colours
    traces: list[Any] = []
    drawn: list[Point] = []
    for one in series(runs):
        sizes = [_size(entry.get(key)) for run in one.runs for entry in run.get("history") or ()]
        groups = max(sizes, default=0)
        if groups <= 1 or groups > MOST_GROUPS:
            points = _widen(curve(one.runs, entry_value(key)), one.runs, key)
            traces += _line(one, points, chosen, hover="%{y:.4~g}")
            drawn += points
            continue
        for group in range(groups):
            points = curve(one.runs, entry_value(key, group))
            named = Series(one.recipe, one.target, f"{one.label}, group {group + 1}", one.dash, one.runs)
            traces += _line(named, points, chosen, hover="%{y:.4~g}", width=1.5)
            drawn += points
    if not drawn:
        return None
    low, high = min(point.low for point in drawn), max(point.high for point in drawn)
    wide = low > 0 and high / low > 20
    return _figure(_striped(traces), "step", y=_decades(low, high) if wide else {"rangemode": "tozero"})


def _shares(traces: list[Any]) -> dict[str, Any]:
    """An axis in percent, which is the whole of it when the values alone would not make one."""
    values = [y for trace in traces for y in trace.y]
    flat = bool(values) and max(values) - min(values) < 0.01
    return {"tickformat": ".0%", "range": [0, 1.02]} if flat else {"tickformat": ".0%"}


def _decades(low: float, high: float) -> dict[str, Any]:
    """A logarithmic axis with its numbers written out: 0.1, 0.2, 0.5, 1, ..."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1, 2, 5) if len(powers) <= 4 else (1,)
    ticks = [float(f"{digit}e{power}") for power in powers for digit in digits]
    shown = [tick for tick in ticks if low / 2 <= tick <= high * 2]
    return {"type": "log", "tickmode": "array", "tickvals": shown, "ticktext": [f"{tick:g}" for tick in shown]}


def _striped(traces: list[Any]) -> list[Any]:
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


def _size(value: Any) -> int:
    return len(value) if isinstance(value, (list, tuple)) else 1


def _widen(points: list[Point], runs: Iterable[Run], key: str) -> list[Point]:
    """Stretch the band of each point over all groups, and not only over their means."""
    seen: dict[float, list[float]] = defaultdict(list)
    for run in runs:
        for entry in run.get("history") or ():
            step, found = number(entry.get("step")), entry.get(key)
            if step is not None and isinstance(found, (list, tuple)):
                seen[step] += [one for one in map(number, found) if one is not None]
    return [
        Point(
            point.step,
            point.mean,
            min([point.low, *seen.get(point.step, ())]),
            max([point.high, *seen.get(point.step, ())]),
            point.epsilon,
        )
        for point in points
    ]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _thin(points: list[Point]) -> list[Point]:
    """Keep at most MOST_POINTS points, the first and the last among them."""
    if len(points) <= MOST_POINTS:
        return points
    stride = (len(points) - 1) / (MOST_POINTS - 1)
    return [points[round(index * stride)] for index in range(MOST_POINTS)]


def _short(value: float) -> float:
    return float(f"{value:.7g}")


def _tint(colour: str, alpha: float) -> str:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def _line(
    one: Series,
    points: list[Point],
    colours: Mapping[str, int],
    *,
    hover: str,
    markers: bool = False,
    width: float = 2.25,
    x: Callable[[Point], float | None] = lambda point: point.step,
) -> list[Any]:
    """The band of a series, when its seeds differ, and its line; nothing when there is no point."""
    points = _thin(points)
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
                fillcolor=_tint(colour, 0.16),
                hoverinfo="skip",
                name=label,
                legendgroup=one.recipe,
                showlegend=False,
                meta={"recipe": one.recipe, "slot": slot, "role": "band"},
            )
        )
    dotted = len(points) == 1 or (markers and len(points) <= 40)
    traces.append(
        go.Scatter(
            x=across,
            y=[_short(point.mean) for point in points],
            mode="lines+markers" if dotted else "lines",
            line={"width": width, "color": colour, "dash": one.dash},
            marker={"size": 8 if len(points) == 1 else 5.5, "color": colour},
            hovertemplate=f"%{{fullData.name}}: {hover}<extra></extra>",
            name=label,
            legendgroup=one.recipe,
            meta={"recipe": one.recipe, "slot": slot, "role": "line"},
        )
    )
    return traces


def _rule(
    recipe: str | None, colours: Mapping[str, int], level: float, left: float, right: float, role: str, text: str
) -> Any:
    """A line straight across: the budget, or the accuracy without privacy."""
    slot = None if recipe is None else colours.get(recipe, 0)
    return go.Scatter(
        x=[left, right],
        y=[_short(level)] * 2,
        mode="lines",
        line={
            "width": 1.5,
            "dash": "dash" if role == "budget" else "dot",
            "color": MUTED if slot is None else COLOURS[slot][0],
        },
        hovertemplate=f"{text}<extra></extra>",
        name=text if recipe is None else escape(recipe),
        legendgroup=recipe or "",
        showlegend=False,
        meta={"recipe": recipe, "slot": slot, "role": role},
    )


def _figure(traces: list[Any], x_title: str, y: Mapping[str, Any]) -> Any | None:
    if not any(trace.meta["role"] == "line" for trace in traces):
        return None
    right = max(x for trace in traces for x in trace.x)
    axis = {
        "gridcolor": GRID,
        "zeroline": False,
        "automargin": True,
        "nticks": 6,
        "ticks": "outside",  # without colour: nothing but a little room between the numbers and the plot
        "ticklen": 6,
        "tickcolor": "rgba(0,0,0,0)",
        "tickfont": {"color": MUTED},
    }
    figure = go.Figure(traces)
    figure.update_layout(
        template=go.layout.Template(),
        font={"family": FONT, "size": 13, "color": INK},
        margin={"l": 8, "r": 12, "t": 12, "b": 8},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        showlegend=False,  # the page has one legend for all plots
        hovermode="x unified",
        hoverlabel={"bgcolor": PAGE, "bordercolor": GRID, "font": {"family": FONT, "size": 12, "color": INK}},
        xaxis={
            **axis,
            "title": {"text": x_title, "font": {"color": MUTED, "size": 12}, "standoff": 8},
            "showgrid": False,
            "range": [0, 1.02 * right],
        },
        yaxis={**axis, **y},
    )
    return figure
