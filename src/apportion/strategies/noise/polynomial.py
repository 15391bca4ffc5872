"""Noise that falls to an end value as a power of the time that is left."""

from __future__ import annotations

from dataclasses import dataclass

from apportion import validate
from apportion.strategies.context import Context
from apportion.strategies.noise.noise_schedule import Paced, require_range


@dataclass(frozen=True)
class PolynomialDecay(Paced):
    """σ_t = (σ₀ − σ_end)·(1 − t/period)^k + σ_end, where t = 0, 1, 2, … epochs are over; σ_end after `period` (ours).

    Args:
        end: σ_end/σ₀ in (0, 1). A part of σ₀, so that it means the same when σ₀ is solved from the budget.
        power: k > 0; 1 is a straight line.
        period: epochs (or steps, as `per` says) until the noise is at its end value.
        multiplier: σ₀; 10 in the published runs, with σ_end = 2.

    Source: Yu L. et al., Differentially Private Model Publishing for Deep Learning, S&P 2019, polynomial decay.
    """

    end: float = 0.2
    power: float = 3.0
    period: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        reason = "it is the last multiplier as a part of the first, and the noise must fall, but not to 0"
        end = validate.in_open_unit("noise.end", self.end, reason, "Try end=0.2")
        require_range("noise.end", end, 1 / end)
        validate.store(
            self,
            end=end,
            power=validate.positive("noise.power", self.power, "with 0 the noise would not fall", "Try power=3.0"),
            period=validate.whole("noise.period", self.period, "the decay takes that long", "Try period=100"),
        )

    def relative(self, context: Context) -> float:
        left = max(0.0, 1 - self.finished(context) / self.period)
        return (1 - self.end) * float(left**self.power) + self.end
