"""The picture of what the referee found."""

from __future__ import annotations

from reproduction.figures import svg
from reproduction.figures.intervals import Interval, Intervals, interval_chart
from reproduction.figures.kept_results import Results
from reproduction.figures.referee_rows import format_difference, judged, questions

COLOURS = {"better": svg.COLOURS[0], "no difference shown": svg.QUIET, "worse": svg.COLOURS[1]}


def referee(results: Results) -> str | None:
    """The difference of each method to the fixed clip, for each question that was run."""
    groups = []
    for name, (_, judge) in questions().items():
        rows = tuple(
            Interval(
                row.method,
                100 * row.difference.mean,
                100 * row.difference.low,
                100 * row.difference.high,
                COLOURS[row.verdict or "no difference shown"],
                format_difference(row.difference),
            )
            for row in judged(results, name)
            if row.difference is not None
        )
        groups += [Intervals(judge.label, rows)] if rows else []
    subtitle = (
        "Test accuracy less that of a fixed clip with as many trials, in points: mean and 95 % interval over seeds. "
        "Colours have Holm's correction for the number of methods."
    )
    key = [(colour, words) for words, colour in COLOURS.items()]
    title = "Published gains beside an equally tuned fixed clip"
    return interval_chart(title, subtitle, "points of accuracy", groups, key) if groups else None
