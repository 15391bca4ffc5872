"""Noise that falls by the same factor in every epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from apportion import validate
from apportion.strategies.noise.noise_schedule import Decay


@dataclass(frozen=True)
class ExponentialDecay(Decay):
    """σ_t = σ₀·e^(−k·t), where t = 0, 1, 2, … epochs are over.

    Args:
        rate: k > 0.
        multiplier: σ₀; 10 in the published runs.

    Source: Yu L. et al., Differentially Private Model Publishing for Deep Learning, S&P 2019, exponential decay.
    """

    rate: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        reason = "it is the exponent by which the noise falls in an epoch"
        validate.store(self, rate=validate.positive("noise.rate", self.rate, reason, "Try rate=0.01"))

    def decayed(self, finished: int) -> float:
        return math.exp(-self.rate * finished)
