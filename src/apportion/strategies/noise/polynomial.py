"""Noise that falls to an end value as a power of the time that is left."""

from __future__ import annotations

from dataclasses import dataclass

from apportion.strategies.context import Context
from apportion.strategies.noise.noise_schedule import Paced, require_range
from apportion.validate import checked, in_open_unit, positive, whole


@dataclass(frozen=True)
class PolynomialDecay(Paced):
    """σ_t = (σ₀ − σ_end)·(1 − t/period)^k + σ_end, where t = 0, 1, 2, … epochs are over; σ_end after `period` (ours).

    Args:
        end: σ_end/σ₀ in (0, 1). A part of σ₀, so that it means the same when σ₀ is solved from the budget.
        power: k > 0; 1 is a straight line.
        period: epochs (or steps, as `per` says) until the noise is at its end value.
        multiplier: σ₀; 10 in the published runs, with σ_end = 2.

    Source: Yu L. et al., Differentially Private Model Publishing for Deep Learning, S&P 2019, polynomial decay.

    Example:
        >>> from apportion.strategies import Context, noise
        >>> falling = noise.PolynomialDecay(end=0.2, power=1.0, period=4)
        >>> [round(falling.relative(Context(step, steps=90, sample_rate=0.1)), 3) for step in (1, 21, 41, 90)]
        [1.0, 0.6, 0.2, 0.2]
    """

    end: float = checked(
        0.2, in_open_unit, "it is the last multiplier as a part of the first, and the noise must fall, but not to 0"
    )
    power: float = checked(3.0, positive, "with 0 the noise would not fall")
    period: int = checked(100, whole, "the decay takes that long")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range("noise.end", self.end, 1 / self.end)

    def relative(self, context: Context) -> float:
        left = max(0.0, 1 - self.elapsed(context) / self.period)
        return (1 - self.end) * float(left**self.power) + self.end
