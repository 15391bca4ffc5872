"""Dot charts: a row for each method, a full dot for ours and a hollow one for what was printed, with the numbers beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reproduction.figures import svg
from reproduction.figures.scale import Scale, format_number

OURS, PRINTED = svg.COLOURS[0], svg.COLOURS[1]
WIDTH, ROW = 200.0, 24.0
"""Of the area of the dots, and the height of a row."""
_GAP, _TOP, _BOTTOM, _KEY = 34.0, 38.0, 50.0, 20.0
_FEW = 4
"""From so many rows on, one that lies far below all others is drawn at the edge: it must not flatten them."""


@dataclass(frozen=True)
class Row:
    """Values in percent; `None` is not drawn. A `quiet` row is no competitor, such as one without privacy; a `strong` one is the best."""

    name: str
    ours: float | None
    deviation: float | None = None
    printed: float | None = None
    quiet: bool = False
    strong: bool = False

    def values(self) -> list[float]:
        """All that is drawn of it."""
        around = [] if self.ours is None else [self.ours + side * (self.deviation or 0.0) for side in (-1, 1)]
        return around if self.printed is None else [*around, self.printed]


@dataclass(frozen=True)
class Group:
    """Rows on one axis."""

    title: str
    rows: tuple[Row, ...]

    def scale(self) -> Scale:
        """Holds all values, but not those of a row that is farther below the others than they are apart."""
        drawn = sorted((row.values() for row in self.rows if row.values()), key=min)
        rest = [value for values in drawn[1:] for value in values]
        if len(drawn) >= _FEW and min(rest) - max(drawn[0]) > max(rest) - min(rest):
            return Scale.around(rest)
        return Scale.around([value for values in drawn for value in values])


def dot_chart(title: str, subtitle: str, across: str, groups: Sequence[Group], *, printed: bool = True) -> str:
    """The picture, rows side by side for every group; `printed` adds what the source printed."""
    names = 22 + max(svg.width_of(row.name) for group in groups for row in group.rows)
    columns = (58.0, 112.0) if printed else (52.0,)
    one = names + WIDTH + columns[-1] + _GAP
    width = svg.card_width(title, one * min(len(groups), svg.COLUMNS) - _GAP)
    parts, top = svg.heading(title, subtitle, width)
    if printed:
        parts += _key(top + 12)
        top += _KEY
    for first in range(0, len(groups), svg.COLUMNS):
        side_by_side = groups[first : first + svg.COLUMNS]
        for column, group in enumerate(side_by_side):
            parts += _group(group, svg.EDGE + one * column, top + 26, names, columns, across)
        top += _TOP + ROW * max(len(group.rows) for group in side_by_side) + _BOTTOM
    described = " ".join([subtitle, *(_in_words(group) for group in groups)])
    return svg.document(title, described, width, top, parts)


def _group(group: Group, left: float, top: float, names: float, columns: Sequence[float], across: str) -> list[str]:
    scale, first, start = group.scale(), top + 12, left + names
    right, bottom, printed = start + WIDTH, first + ROW * len(group.rows), len(columns) > 1

    def at(value: float) -> float:
        return start + max(scale.share(value), 0.0) * WIDTH

    parts = [svg.text(left, top, group.title, bold=True, size=13)]
    if printed:
        parts += [svg.text(right + columns[0], top, "ours", "end", colour=OURS, bold=True)]
        parts += [svg.text(right + columns[1], top, "printed", "end", colour=PRINTED, bold=True)]
    for tick in scale.ticks(5):
        parts += [svg.line(at(tick), first, at(tick), bottom)]
        parts += [svg.text(at(tick), bottom + 16, format_number(tick), "middle", colour=svg.QUIET)]
    parts.append(svg.text((start + right) / 2, bottom + 34, across, "middle", colour=svg.QUIET))
    for number, row in enumerate(group.rows):
        y, colour = first + ROW * (number + 0.5), svg.QUIET if row.quiet else svg.INK
        parts += [svg.line(start, y, right, y), svg.text(left, y + 4, row.name, colour=colour, bold=row.strong)]
        if row.values() and scale.share(min(row.values())) < 0:
            parts.append(svg.text(start - 9, y + 4, "◂", "middle", colour=svg.QUIET))
        if printed and row.printed is not None:
            note = f"{row.name}, printed: {row.printed:.2f}"
            parts.append(svg.circle(at(row.printed), y, PRINTED, note, radius=5.5, hollow=True))
            parts.append(svg.text(right + columns[1], y + 4, f"{row.printed:.1f}", "end", colour=colour))
        if row.ours is not None:
            dot = svg.QUIET if row.quiet else OURS
            low, high = row.ours - (row.deviation or 0.0), row.ours + (row.deviation or 0.0)
            parts.append(svg.line(at(low), y, at(high), y, dot, 2))
            parts.append(svg.circle(at(row.ours), y, dot, f"{row.name}, ours: {row.ours:.2f}", radius=4))
            number_words = f"{row.ours:.2f}"
            parts.append(svg.text(right + columns[0], y + 4, number_words, "end", colour=colour, bold=row.strong))
    return parts


def _key(y: float) -> list[str]:
    x, words = svg.EDGE + 6, "ours: mean ± standard deviation over seeds"
    other = x + 26 + svg.width_of(words)
    return [
        svg.circle(x, y - 4, OURS, "ours", radius=4),
        svg.text(x + 12, y, words),
        svg.circle(other, y - 4, PRINTED, "printed", radius=5.5, hollow=True),
        svg.text(other + 12, y, "printed in the paper"),
    ]


def _in_words(group: Group) -> str:
    rows = [
        f"{row.name} {row.ours:.2f}" + ("" if row.printed is None else f" (printed {row.printed:.1f})")
        for row in group.rows
        if row.ours is not None
    ]
    return f"{group.title}: {', '.join(rows)}."
