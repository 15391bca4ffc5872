"""Noise that falls geometrically, so that μ grows: little is spent early, most at the end."""

from __future__ import annotations

from dataclasses import dataclass

from apportion.strategies.context import Context
from apportion.strategies.noise.noise_schedule import Schedule, require_range
from apportion.validate import at_least, checked


@dataclass(frozen=True)
class GrowingMu(Schedule):
    """μ_t = μ₀·ρ^(t/T), so z_t = z₀·ρ^(−t/T), for t = 1..T.

    Args:
        ratio: ρ = μ_T/μ₀ in [1, 1000]; 1 is constant noise.
        multiplier: z₀ = 1/μ₀. `None`: the smallest that the budget allows.

    Source: Du et al., Dynamic Differential-Privacy Preserving SGD, growing-μ. They calibrate by a central limit theorem, which
    is no upper bound; here the true ε decides.

    Examples:
        >>> from apportion.strategies import Context, noise
        >>> falling = noise.GrowingMu(ratio=4.0)
        >>> [falling.relative(Context(step, steps=100, sample_rate=0.1)) for step in (50, 100)]
        [0.5, 0.25]
    """

    ratio: float = checked(2.0, at_least(1), "it is how much μ grows, and below 1 the noise would grow instead of μ")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range("noise.ratio", self.ratio, self.ratio)

    def relative(self, context: Context) -> float:
        return float(self.ratio ** (-context.step / context.steps))
