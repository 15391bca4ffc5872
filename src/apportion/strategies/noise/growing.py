"""Noise that falls geometrically, so that μ grows: little is spent early, most at the end."""

from __future__ import annotations

from dataclasses import dataclass

from apportion import validate
from apportion.errors import InvalidArgument
from apportion.strategies.context import Context
from apportion.strategies.noise.noise_schedule import Schedule, require_range


@dataclass(frozen=True)
class GrowingMu(Schedule):
    """μ_t = μ₀·ρ^(t/T), so z_t = z₀·ρ^(−t/T), for t = 1..T.

    Args:
        ratio: ρ = μ_T/μ₀ in [1, 1000]; 1 is constant noise.
        multiplier: z₀ = 1/μ₀. `None`: the smallest that the budget allows.

    Source: Du et al., Dynamic Differential-Privacy Preserving SGD, growing-μ. They calibrate by a central limit theorem, which
    is no upper bound; here the true ε decides.
    """

    ratio: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        ratio = validate.positive("noise.ratio", self.ratio, "it is how much μ grows", "Try ratio=2.0")
        if ratio < 1:
            raise InvalidArgument("noise.ratio", ratio, "below 1 the noise would grow instead of μ", "Use at least 1")
        require_range("noise.ratio", ratio, ratio)
        validate.store(self, ratio=ratio)

    def relative(self, context: Context) -> float:
        return float(self.ratio ** (-context.step / context.steps))
