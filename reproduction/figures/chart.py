"""Line charts: panels side by side, each with axes, lines with bands, and names where the lines end."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from reproduction.figures import svg
from reproduction.figures.scale import Scale, format_number

Point = tuple[float, float]
WIDTH, HEIGHT = 300.0, 250.0
"""Of the area in which a panel draws."""
_LEFT, _TOP, _BOTTOM, _GAP = 66.0, 30.0, 50.0, 14.0
_LINE = 13.0
"""From one line of a name to the next."""
_NEAR = 4.0
"""Lines that end so close to each other end in one place."""
_LETTERS = 22
"""A name is broken after so many."""


@dataclass(frozen=True)
class Series:
    """A line. `band` holds (x, least, most) over seeds; `quiet` lines have no name of their own at their end."""

    name: str
    points: tuple[Point, ...]
    band: tuple[tuple[float, float, float], ...] = ()
    dashed: bool = False
    quiet: bool = False
    dots: bool = False


@dataclass(frozen=True)
class Panel:
    """Axes with their lines. `diagonal` draws y = x."""

    title: str
    across: str
    up: str
    series: tuple[Series, ...]
    logarithmic: frozenset[str] = field(default_factory=frozenset)
    zero: bool = False
    diagonal: bool = False

    def scales(self) -> tuple[Scale, Scale]:
        """Those of x and y."""
        xs = [x for one in self.series for x, _ in one.points]
        ys = [y for one in self.series for _, y in one.points]
        ys += [y for one in self.series for _, least, most in one.band for y in (least, most)]
        across = Scale.around(xs, logarithmic="x" in self.logarithmic, margin=0.03)
        up = Scale.around(ys, logarithmic="y" in self.logarithmic, zero=self.zero)
        return across, up


def line_chart(title: str, subtitle: str, panels: Sequence[Panel]) -> str:
    """The picture; a name has the same colour in every panel."""
    names = list(dict.fromkeys(one.name for panel in panels for one in panel.series))
    colours = {name: svg.COLOURS[number % len(svg.COLOURS)] for number, name in enumerate(names)}
    beside = 18 + max((svg.width_of(line) for name in names for line in _broken(name)), default=0.0)
    across, down = _LEFT + WIDTH + beside + _GAP, _TOP + HEIGHT + _BOTTOM
    width = svg.card_width(title, across * min(len(panels), svg.COLUMNS) - _GAP)
    parts, top = svg.heading(title, subtitle, width)
    for number, panel in enumerate(panels):
        row, column = divmod(number, svg.COLUMNS)
        parts += _panel(panel, svg.EDGE + across * column + _LEFT, top + down * row + _TOP, colours)
    described = " ".join([subtitle, *(_in_words(panel) for panel in panels)])
    return svg.document(title, described, width, top + down * -(-len(panels) // svg.COLUMNS), parts)


def spread_labels(wanted: Sequence[float], heights: Sequence[float], least: float, most: float) -> list[float]:
    """Middles near `wanted` of labels that do not overlap and stay in [least, most], as far as there is room; their order stays.

    From above to below each is pushed under its predecessor, and from below to above back over its successor.
    """
    found = list(wanted)
    edge = least
    for index, height in enumerate(heights):
        found[index] = max(found[index], edge + height / 2)
        edge = found[index] + height / 2
    edge = most
    for index, height in reversed(list(enumerate(heights))):
        found[index] = min(found[index], edge - height / 2)
        edge = found[index] - height / 2
    return found


def _panel(panel: Panel, left: float, top: float, colours: Mapping[str, str]) -> list[str]:
    across, up = panel.scales()
    bottom, right = top + HEIGHT, left + WIDTH

    def at(x: float, y: float) -> Point:
        return left + across.share(x) * WIDTH, bottom - up.share(y) * HEIGHT

    parts = [svg.text(left, top - 10, panel.title, bold=True, size=13)]
    for tick in up.ticks(6):
        y = bottom - up.share(tick) * HEIGHT
        parts += [svg.line(left, y, right, y), svg.text(left - 8, y + 4, format_number(tick), "end", colour=svg.QUIET)]
    for tick in across.ticks(6):
        x = left + across.share(tick) * WIDTH
        parts += [svg.line(x, bottom, x, bottom + 4, svg.QUIET)]
        parts += [svg.text(x, bottom + 17, format_number(tick), "middle", colour=svg.QUIET)]
    parts.append(svg.line(left, bottom, right, bottom, svg.QUIET))
    parts.append(svg.text((left + right) / 2, bottom + 36, panel.across, "middle", colour=svg.QUIET))
    parts.append(svg.upright(left - 50, (top + bottom) / 2, panel.up))
    if panel.diagonal:
        low, high = max(across.low, up.low), min(across.high, up.high)
        parts.append(svg.line(*at(low, low), *at(high, high), svg.QUIET, dashed=True))
    for one in panel.series:
        if one.band:
            edge = [at(x, most) for x, _, most in one.band] + [at(x, least) for x, least, _ in reversed(one.band)]
            parts.append(svg.polygon(edge, colours[one.name]))
    for one in panel.series:
        parts.append(svg.polyline([at(*point) for point in one.points], colours[one.name], dashed=one.dashed))
        if one.dots:
            notes = [f"{one.name}: {format_number(x)}, {format_number(y)}" for x, y in one.points]
            parts += [
                svg.circle(*at(*point), colours[one.name], note, hollow=one.dashed)
                for point, note in zip(one.points, notes, strict=True)
            ]
    return parts + _names(panel.series, at, top, right, colours)


def _names(
    series: Sequence[Series], at: Callable[[float, float], Point], top: float, right: float, colours: Mapping[str, str]
) -> list[str]:
    """Each name beside the end of its line, moved apart where lines end close together.

    Lines that end in one place are named from above to below as they came there.
    """

    def order(one: Series) -> tuple[float, float]:
        heights = [at(*point)[1] for point in one.points]
        return round(heights[-1] / _NEAR), sum(heights) / len(heights)

    named = sorted((one for one in series if not one.quiet), key=order)
    broken = [_broken(one.name) for one in named]
    ends = [at(*one.points[-1]) for one in named]
    heights = [_LINE * len(lines) + 2 for lines in broken]
    middles = spread_labels([y for _, y in ends], heights, top - 6, top + HEIGHT + 6)
    parts = []
    for one, (x, y), lines, middle in zip(named, ends, broken, middles, strict=True):
        parts.append(svg.polyline([(x, y), (right + 2, y), (right + 14, middle)], colours[one.name], width=1))
        first = middle + 4 - _LINE * (len(lines) - 1) / 2
        parts += [svg.text(right + 18, first + _LINE * number, words) for number, words in enumerate(lines)]
    return parts


def _broken(name: str) -> list[str]:
    """A name in lines; names of recipes are not broken at their hyphens."""
    return textwrap.wrap(name, _LETTERS, break_on_hyphens=False)


def _in_words(panel: Panel) -> str:
    ends = [f"{one.name} {format_number(round(one.points[-1][1], 3))}" for one in panel.series if not one.quiet]
    return f"{panel.title}: {panel.up} against {panel.across}; where the lines end: {', '.join(ends)}."
