"""Two pictures as SVG, with logarithmic axes and no library: what plotly would need a browser for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, LEFT, RIGHT, TOP = 860, 110, 190, 46
COLOURS = ("#1f4e79", "#c0392b", "#7f8c8d", "#2e8b57", "#8e44ad", "#d68910", "#16a085", "#5d6d7e", "#000000")
Range = tuple[float, float, float]


class Axis:
    """Maps numbers from [low, high] to [start, end], logarithmically."""

    def __init__(self, values: Sequence[float], start: float, end: float):
        self._low, self._high = math.log(min(values) / 1.15), math.log(max(values) * 1.15)
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        share = (math.log(value) - self._low) / (self._high - self._low)
        return round(self._start + share * (self._end - self._start), 1)

    def ticks(self) -> list[float]:
        """1, 2 and 5 times powers of ten that lie on the axis; only the powers if there would be too many."""
        decades = range(math.floor(self._low / math.log(10)), math.ceil(self._high / math.log(10)) + 1)
        for factors in ((1, 2, 5), (1,)):
            found = [factor * 10.0**decade for decade in decades for factor in factors]
            found = [tick for tick in found if self._low <= math.log(tick) <= self._high]
            if len(found) <= 9:
                break
        return found


def ranges(title: str, label: str, rows: Mapping[str, Mapping[str, Range]]) -> str:
    """For each row and series a point at the median and a line from the least to the most."""
    series = list(dict.fromkeys(name for row in rows.values() for name in row))
    step = 8
    height_of_row = step * len(series) + 14
    bottom = TOP + height_of_row * len(rows)
    across = Axis([value for row in rows.values() for triple in row.values() for value in triple], LEFT, WIDTH - RIGHT)
    parts = [_grid(across, bottom)]
    for index, (row, points) in enumerate(rows.items()):
        top = TOP + index * height_of_row
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{top}" y2="{top}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 8, top + height_of_row / 2 + 4, row, "end"))
        for name, (low, middle, high) in points.items():
            at, colour = series.index(name), COLOURS[series.index(name) % len(COLOURS)]
            y = top + 11 + at * step
            line = (
                f'<line x1="{across(low)}" x2="{across(high)}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>'
            )
            point = f'<circle cx="{across(middle)}" cy="{y}" r="3.5" fill="{colour}">'
            parts.append(f"{line}{point}<title>{escape(f'{name} on {row}: {middle:.2f}')}</title></circle>")
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, bottom + 34, label, "middle"))
    return _page(title, bottom + 46, [*parts, _legend(series)])


def curves(title: str, across_label: str, up_label: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """A line with points for each series."""
    bottom = 380
    across = Axis([x for line in lines.values() for x, _ in line], LEFT, WIDTH - RIGHT)
    up = Axis([y for line in lines.values() for _, y in line], bottom, TOP)
    parts = [_grid(across, bottom, sorted({x for line in lines.values() for x, _ in line}))]
    for tick in up.ticks():
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up(tick)}" y2="{up(tick)}" stroke="#eee"/>')
        parts.append(_text(LEFT - 8, up(tick) + 4, f"{tick:g}", "end"))
    for colour, (name, line) in zip(COLOURS, lines.items(), strict=False):
        points = " ".join(f"{across(x)},{up(y)}" for x, y in line)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y in line:
            note = escape(f"{name}, {x:g}: {y:g}")
            parts.append(
                f'<circle cx="{across(x)}" cy="{up(y)}" r="3.5" fill="{colour}"><title>{note}</title></circle>'
            )
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, bottom + 34, across_label, "middle"))
    middle = (TOP + bottom) / 2
    parts.append(f'<g transform="rotate(-90 40 {middle})">{_text(40, middle, up_label, "middle")}</g>')
    return _page(title, bottom + 46, [*parts, _legend(list(lines))])


def _grid(across: Axis, bottom: float, ticks: Sequence[float] | None = None) -> str:
    return "".join(
        f'<line x1="{across(tick)}" x2="{across(tick)}" y1="{TOP}" y2="{bottom}" stroke="{"#888" if tick == 1 else "#eee"}"/>'
        + _text(across(tick), bottom + 16, f"{tick:g}", "middle")
        for tick in (ticks or across.ticks())
    )


def _legend(names: Sequence[str]) -> str:
    x = WIDTH - RIGHT + 16
    return "".join(
        f'<circle cx="{x}" cy="{TOP + 10 + 20 * index}" r="5" fill="{COLOURS[index % len(COLOURS)]}"/>'
        + _text(x + 12, TOP + 14 + 20 * index, name, "start")
        for index, name in enumerate(names)
    )


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'


def _page(title: str, height: float, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">'
    paper = f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    caption = f'<text x="{LEFT}" y="26" font-size="16">{escape(title)}</text>'
    return "\n".join([head, paper, caption, *parts, "</svg>"]) + "\n"
