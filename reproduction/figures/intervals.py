"""Intervals around differences: a row for each method, a line at 0, and colours for what the interval shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reproduction.figures import svg
from reproduction.figures.scale import Scale, format_number

WIDTH, ROW = 230.0, 22.0
"""Of the area of the intervals, and the height of a row."""
_GAP, _TOP, _BOTTOM, _NUMBERS = 34.0, 38.0, 50.0, 140.0
_BEYOND = 2.0
"""What lies so many times farther below 0 than anything lies above it is drawn at the edge: it must not flatten the others."""
_LEAST = 1.0


@dataclass(frozen=True)
class Interval:
    """A difference with the ends of its interval; `colour` says what it shows, and `words` stand beside it."""

    name: str
    mean: float
    low: float
    high: float
    colour: str
    words: str


@dataclass(frozen=True)
class Intervals:
    """Rows on one axis."""

    title: str
    rows: tuple[Interval, ...]

    def scale(self) -> Scale:
        """Holds 0 and all intervals, but for those far below."""
        most = max(0.0, *(row.high for row in self.rows))
        least = min(0.0, *(row.low for row in self.rows))
        return Scale.around([max(least, -max(_LEAST, _BEYOND * most)), most])


def interval_chart(
    title: str, subtitle: str, across: str, groups: Sequence[Intervals], key: Sequence[tuple[str, str]]
) -> str:
    """The picture, groups side by side; `key` has pairs of a colour and what it means."""
    names = 22 + max(svg.width_of(row.name) for group in groups for row in group.rows)
    one = names + WIDTH + _NUMBERS + _GAP
    width = svg.card_width(
        title, max(one * min(len(groups), svg.COLUMNS) - _GAP, *(svg.width_of(group.title, 13) for group in groups))
    )
    parts, top = svg.heading(title, subtitle, width)
    x = svg.EDGE + 6
    for colour, words in key:
        parts += [svg.circle(x, top + 8, colour, words, radius=4), svg.text(x + 12, top + 12, words)]
        x += 34 + svg.width_of(words)
    top += 20
    for first in range(0, len(groups), svg.COLUMNS):
        beside = groups[first : first + svg.COLUMNS]
        for column, group in enumerate(beside):
            parts += _group(group, svg.EDGE + one * column, top + 26, names, across)
        top += _TOP + ROW * max(len(group.rows) for group in beside) + _BOTTOM
    described = " ".join([subtitle, *(_in_words(group) for group in groups)])
    return svg.document(title, described, width, top, parts)


def _group(group: Intervals, left: float, top: float, names: float, across: str) -> list[str]:
    scale, first, start = group.scale(), top + 12, left + names
    right, bottom = start + WIDTH, first + ROW * len(group.rows)

    def at(value: float) -> float:
        return start + min(max(scale.share(value), 0.0), 1.0) * WIDTH

    parts = [svg.text(left, top, group.title, bold=True, size=13)]
    for tick in scale.ticks(5):
        parts += [svg.line(at(tick), first, at(tick), bottom)]
        parts += [svg.text(at(tick), bottom + 16, format_number(tick), "middle", colour=svg.QUIET)]
    parts.append(svg.line(at(0.0), first - 4, at(0.0), bottom, svg.INK, 1.5))
    parts.append(svg.text((start + right) / 2, bottom + 34, across, "middle", colour=svg.QUIET))
    for number, row in enumerate(group.rows):
        y = first + ROW * (number + 0.5)
        parts += [svg.line(start, y, right, y), svg.text(left, y + 4, row.name)]
        if scale.share(row.low) < 0:
            parts.append(svg.text(start - 9, y + 4, "◂", "middle", colour=svg.QUIET))
        if row.high > scale.low:
            parts.append(svg.line(at(row.low), y, at(row.high), y, row.colour, 2.5))
        if row.mean > scale.low:
            parts.append(svg.circle(at(row.mean), y, row.colour, f"{row.name}: {row.words}", radius=4))
        parts.append(svg.text(right + _NUMBERS, y + 4, row.words, "end", colour=row.colour))
    return parts


def _in_words(group: Intervals) -> str:
    return f"{group.title}: " + ", ".join(f"{row.name} {row.words}" for row in group.rows) + "."
