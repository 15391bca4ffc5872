"""The pieces of a picture as SVG text. Nothing here knows what is drawn."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from html import escape

from apportion.reporting import palette

INK, QUIET, GRID, CARD = palette.INK, palette.MUTED, palette.GRID, palette.PAGE
COLOURS = tuple(light for light, _ in palette.COLOURS[1:])
"""Those of the report on a light page; labels tell lines apart beyond the first six."""
FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
SIZE, TITLE = 12.0, 16.0
EDGE = 18.0
"""Left free around a picture."""
COLUMNS = 2
"""So many panels stand side by side; more would be too small to read on a page."""
_NARROW, _WIDE = frozenset("iIjlt.,:;|!'()[] f·r-"), frozenset("mMwW%@ρ—")


def width_of(words: str, size: float = SIZE) -> float:
    """About how wide a text is, rather too much than too little."""
    share = {letter: 0.36 if letter in _NARROW else 0.9 if letter in _WIDE else 0.6 for letter in set(words)}
    return size * sum(share[letter] for letter in words)


def number(value: float) -> str:
    """A coordinate with one digit after the point: enough for the eye, and the same on every machine."""
    return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")


def text(
    x: float, y: float, words: str, anchor: str = "start", *, size: float = SIZE, colour: str = INK, bold: bool = False
) -> str:
    """`anchor` says which end of the text is at x: start, middle or end."""
    weight = ' font-weight="600"' if bold else ""
    place = f'x="{number(x)}" y="{number(y)}" text-anchor="{anchor}" font-size="{number(size)}" fill="{colour}"'
    return f"<text {place}{weight}>{escape(words)}</text>"


def upright(x: float, y: float, words: str) -> str:
    """A quiet text that is read from below to above, with its middle at (x, y)."""
    turned = text(x, y, words, "middle", colour=QUIET)
    return f'<g transform="rotate(-90 {number(x)} {number(y)})">{turned}</g>'


def line(
    x1: float, y1: float, x2: float, y2: float, colour: str = GRID, width: float = 1.0, dashed: bool = False
) -> str:
    ends = f'x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{number(width)}"{_dashes(dashed)}/>'


def polyline(points: Sequence[tuple[float, float]], colour: str, *, width: float = 2.0, dashed: bool = False) -> str:
    style = f'fill="none" stroke="{colour}" stroke-width="{number(width)}" stroke-linejoin="round"{_dashes(dashed)}'
    return f'<polyline points="{_points(points)}" {style}/>'


def polygon(points: Sequence[tuple[float, float]], colour: str) -> str:
    """An area, light enough to see lines through it."""
    return f'<polygon points="{_points(points)}" fill="{colour}" fill-opacity="0.16"/>'


def circle(x: float, y: float, colour: str, note: str, *, radius: float = 3.5, hollow: bool = False) -> str:
    """A point that says what it is when it is pointed at."""
    style = f'fill="{CARD if hollow else colour}" stroke="{colour}" stroke-width="1.6"'
    place = f'cx="{number(x)}" cy="{number(y)}" r="{number(radius)}"'
    return f"<circle {place} {style}><title>{escape(note)}</title></circle>"


def card_width(title: str, content: float) -> float:
    """Of a card that holds its content and its title."""
    return 2 * EDGE + max(content, width_of(title, TITLE))


def heading(title: str, subtitle: str, width: float) -> tuple[list[str], float]:
    """Title and subtitle at the top of a card, and where what stands below them may begin."""
    lines = textwrap.wrap(subtitle, int((width - 2 * EDGE) / (0.5 * SIZE)))
    words = [text(EDGE, 50 + 16 * row, line, colour=QUIET) for row, line in enumerate(lines)]
    return [text(EDGE, 30, title, size=TITLE, bold=True), *words], 42.0 + 16 * len(lines)


def document(title: str, description: str, width: float, height: float, parts: Iterable[str]) -> str:
    """The file: a white card, readable on light and dark pages, with a title and a description for people who do not see it."""
    size = f'width="{number(width)}" height="{number(height)}" viewBox="0 0 {number(width)} {number(height)}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc" font-family="{FONT}">'
    )
    names = f'<title id="title">{escape(title)}</title>\n<desc id="desc">{escape(description)}</desc>'
    card = f'<rect x="0.5" y="0.5" width="{number(width - 1)}" height="{number(height - 1)}" rx="8" fill="{CARD}" stroke="{GRID}"/>'
    return "\n".join([head, names, card, *parts, "</svg>"]) + "\n"


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{number(x)},{number(y)}" for x, y in points)


def _dashes(dashed: bool) -> str:
    return ' stroke-dasharray="5 4"' if dashed else ""
