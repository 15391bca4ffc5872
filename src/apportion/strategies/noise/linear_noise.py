"""Noise that falls along a straight line over the whole run."""

from __future__ import annotations

from dataclasses import dataclass

from apportion.strategies.context import Context
from apportion.strategies.noise.noise_schedule import Schedule, require_range
from apportion.validate import checked, in_open_unit


@dataclass(frozen=True)
class LinearDecay(Schedule):
    """σ_t = σ₀·(1 − (1 − end)·t/T), where t = 0..T−1 steps are over.

    Args:
        end: σ_T/σ₀ in (0, 1), which the line reaches when the run is over.
        multiplier: σ₀.

    Source: Zhang X. et al., Adaptive Privacy Preserving Deep Learning Algorithms for Medical Data, WACV 2021, who decay the
    noise; that the multiplier does so linearly, and until the end of the run, is our reading.

    Example:
        >>> from apportion.strategies import Context, noise
        >>> falling = noise.LinearDecay(end=0.5)
        >>> [falling.relative(Context(step, steps=100, sample_rate=0.1)) for step in (1, 51)]
        [1.0, 0.75]
    """

    end: float = checked(
        0.5, in_open_unit, "it is where the line ends, as a part of its start: the noise must fall, but not to 0"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range("noise.end", self.end, 1 / self.end)

    def relative(self, context: Context) -> float:
        return 1 - (1 - self.end) * (context.step - 1) / context.steps
