"""Standard normals from uniform 64-bit words: the ziggurat of Marsaglia and Tsang (2000), with 1,024 layers.

Let f(x) = exp(−x²/2). The area under f on x ≥ 0 is covered by layers of equal area A. Layer i ≥ 1 is the box
[0, x_i] × [f(x_i), f(x_{i+1})] with R = x_1 > x_2 > … > x_1024 = 0; layer 0 is the box [0, R] × [0, f(R)] and the tail beyond R. A
point drawn uniformly from a layer drawn uniformly, and kept if it is under f, is uniform under f: its abscissa is a half normal.
Nearly always the point is left of x_{i+1}, where all of its box is under f; then one product was all the work (`Proposer`). The
others, 0.4 %, are decided by a second word (`resolve_proposals`).

One word makes one normal: as a signed integer it is sign and abscissa, as a fraction of x_i; its last ten bits are the layer, too.
They move the abscissa by less than 2⁻⁵³·x_i, the precision that float64 has there.

A normal is a product of words and tables, or computed by + − × ÷ √ alone, which IEEE 754 rounds in the same way everywhere; so are
the tables. The same words are the same normals on every machine, unless two libraries' exp, one rounding error apart, decide about
a point between them: less than once in 10¹⁵ normals. The largest is √(R² + 128·ln 2) = 10.2 standard deviations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LAYERS = 1024
# R and A solve f(x_1024) = 1 and A = R·f(R) + ∫_R^∞ f; a test checks both.
TAIL_START = Decimal("4.0388498461095045227144234053359312047")
AREA = Decimal("0.0012263246463530880728853709277371270619")
_R = float(TAIL_START)
_ARTANH = tuple(2 / odd for odd in range(21, 0, -2))

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Words = NDArray[np.uint64]


class Tables(NamedTuple):
    """By layer i: `scale` x_i/2⁶³; `safe` 2⁶³·x_{i+1}/x_i, below which a word is under f; `bottom` and `height`/2⁶⁴ of the box."""

    scale: Floats
    safe: Floats
    bottom: Floats
    height: Floats


@cache
def build_tables() -> Tables:
    """In decimal arithmetic, which rounds in the same way everywhere, and then rounded to float64."""
    with localcontext() as context:
        context.prec = 36
        edge = (-TAIL_START * TAIL_START / 2).exp()
        widths, bottom = [AREA / edge, TAIL_START], [Decimal(0), edge]
        for _ in range(2, LAYERS):
            bottom.append(bottom[-1] + AREA / widths[-1])
            widths.append((-2 * bottom[-1].ln()).sqrt())
        scale = [width / 2**63 for width in widths]
        safe = [2**63 * inner / outer for outer, inner in zip(widths, [*widths[1:], Decimal(0)], strict=True)]
        height = [AREA / width / 2**64 for width in widths]
    return Tables(*(np.array([float(value) for value in column]) for column in (scale, safe, bottom, height)))


class Proposer:
    """The usual case, for up to `size` words at a time, in buffers that are used again."""

    def __init__(self, size: int):
        self._layers, self._fraction = np.empty(size, dtype=np.int64), np.empty(size)
        self._safe, self._outside = np.empty(size), np.empty(size, dtype=bool)

    def propose(self, words: Words, result: Floats) -> tuple[Integers, Integers]:
        """Put x = (word/2⁶³)·x_i into `result`; returns the places where x is not a normal yet, and their layers."""
        scale, safe_by_layer, _, _ = build_tables()
        whole, size = words.view("<i8"), len(words)
        layers, fraction, safe = self._layers[:size], self._fraction[:size], self._safe[:size]
        np.bitwise_and(whole, LAYERS - 1, layers)
        np.copyto(fraction, whole)
        scale.take(layers, out=result, mode="clip")  # no layer is out of range: "clip" saves a copy
        np.multiply(result, fraction, result)
        safe_by_layer.take(layers, out=safe, mode="clip")
        (places,) = np.greater_equal(np.abs(fraction, fraction), safe, self._outside[:size]).nonzero()
        return places, layers[places]


def resolve_proposals(result: Floats, places: Integers, layers: Integers, words: Callable[[int], Words]) -> None:
    """Decide the proposals at `places`: those under f stay, those in the tail are drawn from it, others are proposed anew."""
    _, _, bottom, height = build_tables()
    while len(places):
        x = result[places]
        y = bottom[layers] + height[layers] * words(len(places))
        above = y > np.exp(-0.5 * x * x)
        for k in (layers == 0).nonzero()[0]:
            result[places[k]], above[k] = math.copysign(_sample_tail(words), x[k]), False
        places = places[above]
        proposed = np.empty(len(places))
        again, layers = Proposer(len(places)).propose(words(len(places)), proposed)
        result[places] = proposed
        places = places[again]


def settle_proposals(
    result: Floats, places: Integers, layers: Integers, words: Callable[[int, Integers], Words]
) -> None:
    """As `resolve_proposals`, but with words that belong to a place: what becomes of one does not depend on the others.

    Args:
        words: `words(round, places)` has a row of two words for each place. The first decides about the proposal, the second is
            the next one; in the tail they are one attempt.
    """
    scale, safe, bottom, height = build_tables()
    for attempt in itertools.count(1):
        if not len(places):
            return
        decide, propose = words(attempt, places).T
        x, in_tail = result[places], layers == 0
        above = (bottom[layers] + height[layers] * decide > np.exp(-0.5 * x * x)) & ~in_tail
        whole = propose.view("<i8")
        layers = whole & (LAYERS - 1)
        fraction = whole.astype(np.float64)
        result[places[above]] = (scale[layers] * fraction)[above]
        again = above & (np.abs(fraction) >= safe[layers])
        for k in in_tail.nonzero()[0].tolist():
            tail = _try_tail(int(decide[k]), int(propose[k]))
            if tail is None:
                again[k], layers[k] = True, 0
            else:
                result[places[k]] = math.copysign(tail, x[k])
        places, layers = places[again], layers[again]


def _sample_tail(words: Callable[[int], Words]) -> float:
    """A half normal beyond R."""
    while True:
        if (x := _try_tail(*words(2).tolist())) is not None:
            return x


def _try_tail(first: int, second: int) -> float | None:
    """One attempt at a half normal beyond R (Marsaglia 1964): √(R² − 2·ln u) has density ∝ x·f(x) there, and is kept with
    probability R/x."""
    x = math.sqrt(_R * _R - 2 * portable_log((first + 1) * 2.0**-64))  # all 64 bits count, and none gives ln 0
    return x if second * x < _R * 2.0**64 else None


def portable_log(value: float) -> float:
    """ln of a number in (0, 1], by operations that are the same everywhere; relative error below 1e-15.

    ln(m·2^e) = 2·artanh((m − 1)/(m + 1)) + e·ln 2; for m in [√½, √2) 11 terms of artanh's series leave 1e-18.
    """
    mantissa, exponent = math.frexp(value)
    if mantissa < 0.7071067811865476:
        mantissa, exponent = 2 * mantissa, exponent - 1
    ratio = (mantissa - 1) / (mantissa + 1)
    square, series = ratio * ratio, 0.0
    for coefficient in _ARTANH:
        series = series * square + coefficient
    return ratio * series + exponent * 0.6931471805599453
