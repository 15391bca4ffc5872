"""The figures of the report: for each a pure function from series to a plotly figure, and a caption.

The line of a series is the mean over its seeds, its band reaches from the lowest to the highest. One recipe has one colour in all
figures. Captions say what there is to see, for those who look and for those who listen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from apportion.reporting.curves import (
    CLIP,
    EPSILON,
    MULTIPLIER,
    Point,
    Value,
    count_groups,
    make_curve,
    make_score_curve,
)
from apportion.reporting.drawing import (
    draw_group,
    draw_level,
    draw_series,
    fit_percent_axis,
    fit_size_axis,
    label_level,
    make_figure,
    stripe_coinciding,
)
from apportion.reporting.formatting import format_epsilon, format_percent
from apportion.reporting.result import HistoryEntry, as_number
from apportion.reporting.series import Experiment, Series, rank_of

Colours = Mapping[str, int]
MOST_NAMED = 4


def draw_score_by_steps(series: Sequence[Series], colours: Colours) -> Any | None:
    """The score on test data at the steps where it was measured."""
    traces: list[Any] = []
    for one in series:
        traces += draw_series(one, make_score_curve(one), colours, hover=_hover(one), markers=True)
    return make_figure(traces, "step", y=_fit_score_axis(series, traces))


def draw_score_by_epsilon(series: Sequence[Series], colours: Colours) -> Any | None:
    """The score on test data against the ε spent so far; non-private training, which has no ε, is a dotted line across."""
    traces: list[Any] = []
    for one in series:
        points = [point for point in make_score_curve(one) if point.epsilon is not None]
        hover = f"{_hover(one)} at ε = %{{x:.3~f}}"
        traces += draw_series(one, points, colours, hover=hover, markers=True, x=lambda point: point.epsilon)
    if not traces:
        return None
    right = max(x for trace in traces for x in trace.x)
    for one in series:
        if one.status == "none" and one.score is not None:
            label = f"{one.label}: {one.measure.show(one.score)}"
            traces.append(draw_level(one.recipe, colours.get(one.recipe, 0), one.score, right, "reference", label))
    figure = make_figure(traces, "ε spent", y=_fit_score_axis(series, traces))
    return None if figure is None else figure.update_layout(hovermode="closest")


def _hover(one: Series) -> str:
    return "%{y:.1%}" if one.measure.in_percent else "%{y:.4~g}"


def _fit_score_axis(series: Sequence[Series], traces: list[Any]) -> dict[str, Any]:
    """Accuracy in percent, without a title, as the heading names it; another metric as it is, with its name."""
    measure = series[0].measure
    if measure.in_percent:
        return fit_percent_axis(traces)
    values = [y for trace in traces for y in trace.y]
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.05 * ((high - low) or abs(high) or 1.0)
    return {"range": [low - room, high + room], "title": {"text": f"{measure.name} ({measure.better} is better)"}}


def draw_epsilon_by_steps(series: Sequence[Series], colours: Colours) -> Any | None:
    """The ε spent so far, with each budget as a dashed line."""
    traces: list[Any] = []
    budgets: set[float] = set()
    for one in series:
        drawn = draw_series(one, make_curve(one.runs, EPSILON), colours, hover="ε = %{y:.3~f}")
        traces += drawn
        if drawn and one.target is not None:
            budgets.add(one.target)
    if not traces:
        return None
    right = max(x for trace in traces for x in trace.x)
    traces += [draw_level(None, None, level, right, "budget", f"budget: ε = {level:g}") for level in sorted(budgets)]
    figure = make_figure(stripe_coinciding(traces), "step", y={"rangemode": "tozero"})
    for level in sorted(budgets):
        label_level(figure, level, f"budget ε = {level:g}")
    return figure


def draw_clip_by_steps(series: Sequence[Series], colours: Colours) -> Any | None:
    """The clip threshold; of several groups of parameters their mean, in a band from the smallest to the largest."""
    return _draw_setting(series, colours, CLIP)


def draw_noise_by_steps(series: Sequence[Series], colours: Colours) -> Any | None:
    """The noise multiplier."""
    return _draw_setting(series, colours, MULTIPLIER)


def draw_clip_by_groups(series: Sequence[Series], colours: Colours) -> Any | None:
    """The threshold of each group of parameters, for the one series that the reader chooses; means over seeds."""
    traces: list[Any] = []
    drawn: list[Point] = []
    for one in series:
        several = count_groups(one.runs)
        for group in range(several if several > 1 else 0):
            points = make_curve(one.runs, _clip_of(group))
            traces += [draw_group(one, points, group, several)] if points else []
            drawn += points
    if not drawn:
        return None
    axis = fit_size_axis(min(point.mean for point in drawn), max(point.mean for point in drawn))
    return make_figure(traces, "step", y=axis)


def draw_epsilon_by_people(series: Sequence[Series], colours: Colours) -> Any | None:
    """The ε that each group of people has spent, for the one series that the reader chooses, with each group's budget as a dashed line."""
    traces: list[Any] = []
    budgets: dict[float, str] = {}
    for one in series:
        groups = people_of(one)
        for number, group in enumerate(groups):
            points = make_curve(one.runs, _spent_by(group["name"]))
            traces += [draw_group(one, points, number, len(groups), str(group["name"]))] if points else []
            budgets |= {float(group["budget"]): str(group["name"])} if points else {}
    if not traces:
        return None
    right = max(x for trace in traces for x in trace.x)
    traces += [draw_level(None, None, level, right, "budget", f"budget: ε = {level:g}") for level in sorted(budgets)]
    figure = make_figure(traces, "step", y={"rangemode": "tozero"})
    for level, name in sorted(budgets.items()):
        label_level(figure, level, f"budget of {escape(name)}, ε = {level:g}")
    return figure


def people_of(one: Series) -> Sequence[Mapping[str, Any]]:
    """The groups of people with budgets of their own, as a run states them."""
    found = next((run.details["groups"] for run in one.runs if run.details.get("groups")), ())
    return [group for group in found if isinstance(group, Mapping) and {"name", "budget", "epsilon"} <= group.keys()]


def _spent_by(name: str) -> Value:
    def value(entry: HistoryEntry) -> float | None:
        spent = entry.details.get("group_epsilon")
        return as_number(spent.get(name)) if isinstance(spent, Mapping) else None

    return value


def _draw_setting(series: Sequence[Series], colours: Colours, value: Value) -> Any | None:
    curves = [(one, make_curve(one.runs, value)) for one in series]
    traces = [trace for one, points in curves for trace in draw_series(one, points, colours, hover="%{y:.4~g}")]
    drawn = [point for _, points in curves for point in points]
    if not drawn:
        return None
    axis = fit_size_axis(min(point.low for point in drawn), max(point.high for point in drawn))
    return make_figure(stripe_coinciding(traces), "step", y=axis)


def _clip_of(group: int) -> Value:
    return lambda entry: entry.clip[group] if group < len(entry.clip) else None


# Captions


def caption_score(series: Sequence[Series], figure: Any) -> str:
    """Who ends where."""
    measured = sorted((one for one in series if one.score is not None), key=rank_of, reverse=True)
    said = [f"{one.label} {one.measure.show(one.score)}" for one in measured]
    return f"{series[0].measure.better.capitalize()} is better. At the end: {_name_first(said, ', ')}.{_mention_cut(figure)}"


def caption_tradeoff(series: Sequence[Series], figure: Any) -> str:
    """Which corner is the good one."""
    free = any(one.status == "none" and one.score is not None for one in series)
    line = " The dotted line is where training without privacy ends." if free else ""
    measure = series[0].measure
    side, gain = ("Up", f"more {measure.name}") if measure.better == "higher" else ("Down", f"less {measure.name}")
    return f"{side} and to the left is better: {gain} for less privacy spent.{line}{_mention_cut(figure)}"


def caption_spending(series: Sequence[Series], figure: Any) -> str:
    """Whether budgets were kept."""
    pairs = [(run.epsilon, run.target_epsilon) for one in series for run in one.runs]
    held = [(spent, target) for spent, target in pairs if spent is not None and target is not None]
    over = sum(spent > target for spent, target in held)
    said = "The privacy spent can only grow, step by step."
    if not held:
        return said
    if over:
        return f"{said} {over} of {len(held)} runs end above their budget, the dashed line."
    return f"{said} Every run ends at or below its budget, the dashed line."


def caption_clip(series: Sequence[Series], figure: Any) -> str:
    """How the thresholds move."""
    said = []
    for one in series:
        average = ", on average over its groups" if count_groups(one.runs) > 1 else ""
        said += [moves + average for moves in _describe_course(one, CLIP)]
    return f"The largest norm that the gradient of one record may keep: {_name_first(said, '; ')}."


def caption_noise(series: Sequence[Series], figure: Any) -> str:
    """How the multipliers move."""
    said = [moves for one in series for moves in _describe_course(one, MULTIPLIER)]
    return f"The noise, as a multiple of the clip threshold: {_name_first(said, '; ')}."


def caption_people(series: Sequence[Series], figure: Any) -> str:
    """Whether every group ends at its budget."""
    said = [
        f"{one.label}: "
        + ", ".join(f"{group['name']} {format_epsilon(group['epsilon'])} of {group['budget']:g}" for group in groups)
        for one in series
        if (groups := people_of(one))
    ]
    return f"Each group has an account of its own, and ends at its budget, the dashed lines. {_name_first(said, '; ')}."


def caption_groups(series: Sequence[Series], figure: Any) -> str:
    """What a group is."""
    return (
        "The threshold of each group of parameters, from the first group in the model to the last; the mean over runs. "
        "The gradient of one record is clipped in each group separately."
    )


def _describe_course(one: Series, value: Value) -> list[str]:
    """From where to where a value goes; nothing if there is none."""
    values = [point.mean for point in make_curve(one.runs, value)]
    if not values:
        return []
    first, last = f"{values[0]:.3g}", f"{values[-1]:.3g}"
    moves = f"{min(values):.3g}" != f"{max(values):.3g}"
    return [f"{one.label} {f'goes from {first} to {last}' if moves else f'stays at {first}'}"]


def _name_first(said: Sequence[str], comma: str) -> str:
    """The first few, and how many more there are."""
    more = len(said) - MOST_NAMED
    return comma.join([*said[:MOST_NAMED], *([f"and {more} more"] if more > 0 else [])])


def _mention_cut(figure: Any) -> str:
    bottom = figure.layout.yaxis.range[0]
    hidden = any(y < bottom for trace in figure.data for y in trace.y)
    return f" Values below {format_percent(max(bottom, 0), 0)} are cut off." if hidden else ""


# All of them


@dataclass(frozen=True)
class Panel:
    """One figure of an experiment."""

    name: str
    heading: str
    draw: Callable[[Sequence[Series], Colours], Any | None]
    caption: Callable[[Sequence[Series], Any], str]


PANELS = (
    Panel("accuracy-epsilon", "Test {metric} against ε spent", draw_score_by_epsilon, caption_tradeoff),
    Panel("accuracy-steps", "Test {metric} against steps", draw_score_by_steps, caption_score),
    Panel("epsilon-steps", "ε spent against steps", draw_epsilon_by_steps, caption_spending),
    Panel("epsilon-people", "ε spent by each group of people", draw_epsilon_by_people, caption_people),
    Panel("clip-steps", "Clip threshold against steps", draw_clip_by_steps, caption_clip),
    Panel("noise-steps", "Noise multiplier against steps", draw_noise_by_steps, caption_noise),
    Panel("clip-groups", "Clip threshold of each group", draw_clip_by_groups, caption_groups),
)


def draw_panels(experiment: Experiment, place: int, colours: Colours) -> list[dict[str, Any]]:
    """The figures that have something to show; the first is wide, and so is the last of an even number of them."""
    found: list[dict[str, Any]] = []
    for panel in PANELS:
        figure = panel.draw(experiment.series, colours)
        if figure is not None:
            drawn = json.loads(figure.to_json())
            choices = dict.fromkeys(trace["meta"].get("choice") for trace in drawn["data"])
            found.append(
                {
                    "id": f"{panel.name}-{place}",
                    "heading": panel.heading.format(metric=experiment.measure.name),
                    "caption": panel.caption(experiment.series, figure),
                    "choices": [choice for choice in choices if choice is not None],
                    "figure": drawn,
                }
            )
    for at, one in enumerate(found):
        one["wide"] = at == 0 or (at == len(found) - 1 and len(found) % 2 == 0)
    return found
