"""Noise that falls as the inverse of time."""

from __future__ import annotations

from dataclasses import dataclass

from apportion import validate
from apportion.strategies.noise.noise_schedule import Decay


@dataclass(frozen=True)
class TimeDecay(Decay):
    """σ_t = σ₀ / (1 + k·t), where t = 0, 1, 2, … epochs are over.

    Args:
        rate: k > 0.
        multiplier: σ₀; 10 in the published runs.

    Source: Yu L. et al., Differentially Private Model Publishing for Deep Learning, S&P 2019, time-based decay.
    """

    rate: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        reason = "the noise falls by 1/(1 + rate) in the first epoch"
        validate.store(self, rate=validate.positive("noise.rate", self.rate, reason, "Try rate=0.05"))

    def decayed(self, finished: int) -> float:
        return 1 / (1 + self.rate * finished)
