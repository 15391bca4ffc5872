"""Noise that falls geometrically, so that μ grows: little is spent early, most at the end."""

from __future__ import annotations

from dataclasses import dataclass

from apportion import validate
from apportion.errors import InvalidArgument
from apportion.strategies.context import Context


@dataclass(frozen=True)
class GrowingMu:
    """μ_t = μ₀·ρ^(t/T), so z_t = z₀·ρ^(−t/T), for t = 1..T.

    Args:
        ratio: ρ = μ_T/μ₀ ≥ 1; 1 is constant noise.
        multiplier: z₀ = 1/μ₀. `None`: the smallest that the budget allows.

    Source: Du et al., Dynamic Differential-Privacy Preserving SGD, growing-μ. They calibrate by a central limit theorem, which
    is no upper bound; here the true ε decides.
    """

    ratio: float = 2.0
    multiplier: float | None = None

    def __post_init__(self) -> None:
        ratio = validate.positive("noise.ratio", self.ratio, "it is how much μ grows", "Try ratio=2.0")
        if ratio < 1:
            raise InvalidArgument("noise.ratio", ratio, "below 1 the noise would grow instead of μ", "Use at least 1")
        validate.store(self, ratio=ratio)
        if self.multiplier is not None:
            reason, fix = "without noise there is no privacy", "Leave it out to fit the budget"
            validate.store(self, multiplier=validate.positive("noise.multiplier", self.multiplier, reason, fix))

    def relative(self, context: Context) -> float:
        return float(self.ratio ** (-context.step / context.steps))
