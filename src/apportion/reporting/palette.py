"""The colours and the type of everything that is drawn: (on a light page, on a dark page)."""

from __future__ import annotations

# The page itself; the style sheet has a variable of each name.
THEME: dict[str, tuple[str, str]] = {
    "page": ("#ffffff", "#14161b"),
    "panel": ("#ffffff", "#1b1e25"),
    "ink": ("#1f2430", "#e7e9ee"),
    "soft": ("#3d4452", "#c3c8d2"),
    "muted": ("#667085", "#98a1b0"),
    "line": ("#e6e8ec", "#2b303a"),
    "accent": ("#0072b2", "#4aa8e0"),
    "tint": ("#f2f8fc", "#1a2733"),
    "good": ("#04684c", "#5fd0a5"),
    "good-page": ("#e3f4ee", "#163029"),
    "warn": ("#7a4b00", "#f0b25c"),
    "warn-page": ("#fdf1dc", "#33270f"),
    "none": ("#4a5160", "#b4bcc8"),
    "none-page": ("#eef0f3", "#282d36"),
}
INK, MUTED, GRID, PAGE = (THEME[name][0] for name in ("ink", "muted", "line", "page"))
# Slot 0 is the grey of non-private training. Slots 1 to 6 have the hues of the colour-blind
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
    ("#aa3399", "#dd88cf"),
    ("#7f3010", "#cf8f70"),
    ("#00808a", "#45b8c4"),
    ("#5566c0", "#96a4f2"),
)
# From the first group of parameters to the last, through the middle: blue to yellow, which all kinds of colour vision tell apart.
RAMP: tuple[tuple[str, str], ...] = (("#3b1f7a", "#a897ff"), ("#1f8a8c", "#3fc1b0"), ("#d19a1c", "#f2cc4d"))
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
PASSED, FAILED = "#009e73", "#c0392b"
"""What holds, and what does not: a bound that is kept, an audit that failed, an accountant that is no upper bound."""


def choose_colour(number: int) -> str:
    """The colour of a figure's line by its number, counted from 0; never the grey of non-private training."""
    return COLOURS[1 + number % (len(COLOURS) - 1)][0]


def make_tint(colour: str, alpha: float) -> str:
    """A colour that lets the page shine through."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"
