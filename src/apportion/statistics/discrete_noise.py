"""Noise on whole numbers, drawn exactly: no floating-point number is involved, so there are no low bits to attack.

The discrete Laplace distribution with scale b has P[x] = (1 − α)/(1 + α)·α^|x|, α = e^{−1/b}, x any whole number. Added to a vector of
whole numbers that one record moves by at most Δ in L1 norm, with b = Δ/ε, it is ε-DP, exactly (Ghosh, Roughgarden and Sundararajan 2009).

It is drawn from uniform words by comparing whole numbers only (Canonne, Kamath and Steinke 2020, algorithms 1 and 2); the scale is a
fraction, and every float is one.
"""

from __future__ import annotations

import math
from fractions import Fraction

from apportion.curator.randomness import Stream


def draw_below(bound: int, stream: Stream) -> int:
    """A uniform whole number in 0 … bound − 1, by rejection."""
    bits = (bound - 1).bit_length()
    words = -(-bits // 64)
    while True:
        number = int.from_bytes(stream.words(words).tobytes(), "little") >> (64 * words - bits)
        if number < bound:
            return number


def draw_discrete_laplace(scale: Fraction, stream: Stream) -> int:
    """One draw with P[x] ∝ e^{−|x|/scale}."""
    numerator, denominator = scale.numerator, scale.denominator
    while True:
        rest = draw_below(numerator, stream)
        if not _falls_with_exp(rest, numerator, stream):
            continue
        whole = 0
        while _falls_with_exp(1, 1, stream):
            whole += 1
        size = (rest + numerator * whole) // denominator
        negative = bool(draw_below(2, stream))
        if size or not negative:  # 0 has no sign: one of its two ways is refused
            return -size if negative else size


def _falls_with_exp(numerator: int, denominator: int, stream: Stream) -> bool:
    """True with probability e^{−γ}, γ = numerator/denominator in [0, 1]: the first k with no success of γ/k is odd."""
    k = 1
    while draw_below(denominator * k, stream) < numerator:
        k += 1
    return k % 2 == 1


def discrete_laplace_variance(scale: float) -> float:
    """2α/(1 − α)², α = e^{−1/scale}; about 2·scale² for a large scale. At least 1e-100, because weights are one over it."""
    return max(2 * math.exp(-1 / scale) / math.expm1(-1 / scale) ** 2, 1e-100)
