"""Noise that falls along a straight line over the whole run."""

from __future__ import annotations

from dataclasses import dataclass

from apportion import validate
from apportion.strategies.context import Context
from apportion.strategies.noise.noise_schedule import Schedule, require_range


@dataclass(frozen=True)
class LinearDecay(Schedule):
    """σ_t = σ₀·(1 − (1 − end)·t/T), where t = 0..T−1 steps are over.

    Args:
        end: σ_T/σ₀ in (0, 1), which the line reaches when the run is over.
        multiplier: σ₀.

    Source: Zhang X. et al., Adaptive Privacy Preserving Deep Learning Algorithms for Medical Data, WACV 2021, who decay the
    noise; that the multiplier does so linearly, and until the end of the run, is our reading.
    """

    end: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        reason = "it is where the line ends, as a part of the first multiplier, and the noise must fall, but not to 0"
        end = validate.in_open_unit("noise.end", self.end, reason, "Try end=0.5")
        require_range("noise.end", end, 1 / end)
        validate.store(self, end=end)

    def relative(self, context: Context) -> float:
        return 1 - (1 - self.end) * (context.step - 1) / context.steps
