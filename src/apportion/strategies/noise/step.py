"""Noise that is constant for some epochs, then falls by a factor."""

from __future__ import annotations

from dataclasses import dataclass

from apportion import validate
from apportion.strategies.noise.noise_schedule import Decay


@dataclass(frozen=True)
class StepDecay(Decay):
    """σ_t = σ₀·k^⌊t/period⌋, where t = 0, 1, 2, … epochs are over.

    The survey of Monir et al. prints the exponent without the floor; that would be an exponential decay.

    Args:
        factor: k in (0, 1).
        period: epochs (or steps, as `per` says) between two falls.
        multiplier: σ₀; 10 in the published runs.

    Source: Yu L. et al., Differentially Private Model Publishing for Deep Learning, S&P 2019, step decay.
    """

    factor: float = 0.6
    period: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        reason = "the noise is multiplied by it and must fall, but not to 0"
        validate.store(
            self,
            factor=validate.in_open_unit("noise.factor", self.factor, reason, "Try factor=0.6"),
            period=validate.whole("noise.period", self.period, "the noise stays for that long", "Try period=10"),
        )

    def decayed(self, finished: int) -> float:
        return float(self.factor ** (finished // self.period))
