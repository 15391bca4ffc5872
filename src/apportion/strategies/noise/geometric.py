"""Noise whose variance falls by the same factor at every step."""

from __future__ import annotations

from dataclasses import dataclass, field

from apportion import validate
from apportion.strategies.noise.noise_schedule import Decay, Pace


@dataclass(frozen=True)
class GeometricDecay(Decay):
    """σ_t² = R^t·σ₀², where t = 0, 1, 2, … steps are over.

    Args:
        factor: R in (0, 1), of the *variance*.
        multiplier: σ₀.

    Source: Zhang X. et al., Adaptive Privacy Preserving Deep Learning Algorithms for Medical Data, WACV 2021, who price
    decaying noise by tCDP, far above the price here. The law of decay is our reading: with it their bound has a closed form.
    """

    factor: float = 0.999
    per: Pace = field(default="step", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        reason = "the variance is multiplied by it at every step and must fall, but not to 0"
        validate.store(self, factor=validate.in_open_unit("noise.factor", self.factor, reason, "Try factor=0.999"))

    def decayed(self, finished: int) -> float:
        return float(self.factor ** (finished / 2))
