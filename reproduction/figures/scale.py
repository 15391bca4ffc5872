"""Axes: from numbers to a share of a length, and the round numbers that are written beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Scale:
    """Maps [low, high] to [0, 1], linearly or by the logarithm."""

    low: float
    high: float
    logarithmic: bool = False

    @classmethod
    def around(
        cls, values: Iterable[float], *, logarithmic: bool = False, margin: float = 0.06, zero: bool = False
    ) -> Scale:
        """A scale that holds all values, and `margin` of its length beyond them; with `zero` it begins at 0."""
        found = [*values, 0.0] if zero else list(values)
        low, high = (math.log(min(found)), math.log(max(found))) if logarithmic else (min(found), max(found))
        width = high - low or abs(high) or 1.0
        low, high = low - (0.0 if zero else margin * width), high + margin * width
        return cls(math.exp(low), math.exp(high), True) if logarithmic else cls(low, high)

    def share(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        if self.logarithmic:
            low = math.log(self.low)  # differences of logarithms: a quotient may overflow
            return (math.log(value) - low) / (math.log(self.high) - low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int) -> list[float]:
        """At most about `most` round numbers on the scale."""
        if self.logarithmic:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for factors in ((1, 2, 5), (1, 3), (1,)):
                found = [float(f"{factor}e{decade}") for decade in decades for factor in factors]
                found = [tick for tick in found if self.low * (1 - 1e-9) <= tick <= self.high * (1 + 1e-9)]
                if 2 <= len(found) <= most:
                    return found
            if len(found) >= 2:
                return found[:: math.ceil(len(found) / most)]
        step = self._step(most)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(number * step, 12) for number in range(first, last + 1)]

    def _step(self, most: int) -> float:
        width = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(width))
        return power * next(factor for factor in _ROUND if factor * power >= width * (1 - 1e-9))


def format_number(value: float) -> str:
    """A number as people write it, without a needless zero: 0.5, 1,200, 1e-5."""
    if value and abs(value) < 1e-3:
        mantissa, exponent = f"{value:.3g}".split("e") if "e" in f"{value:.3g}" else (f"{value:.3g}", "")
        return f"{mantissa}e{int(exponent)}" if exponent else mantissa
    return f"{round(value, 6):,.10g}".replace("-", "−")
