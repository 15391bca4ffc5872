"""A threshold that falls geometrically over the run."""

from __future__ import annotations

from dataclasses import dataclass

from apportion import validate
from apportion.errors import InvalidArgument
from apportion.strategies.clip.clip_schedule import ClipSchedule
from apportion.strategies.context import Context


@dataclass(frozen=True)
class SensitivityDecay(ClipSchedule):
    """C_t = max(C₀·ρ^(−t/T), C_min), for t = 1..T.

    Args:
        start: C₀.
        ratio: ρ = C₀/C_T ≥ 1; 1 is a fixed threshold.
        minimum: C_min.

    Source: Du et al., Dynamic Differential-Privacy Preserving SGD, sensitivity decay.
    Guarantee: one record moves the sum by at most C_t; the price is that of a fixed threshold.
    """

    start: float = 1.5
    ratio: float = 2.0
    minimum: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.store(
            self,
            start=validate.positive("clip.start", self.start, "it bounds what one record can do", "Try start=1.5"),
            ratio=validate.positive("clip.ratio", self.ratio, "it is how much the threshold falls", "Try ratio=2.0"),
            minimum=validate.positive("clip.minimum", self.minimum, "0 would release noise only", "Try minimum=1e-3"),
        )
        if self.ratio < 1:
            raise InvalidArgument("clip.ratio", self.ratio, "below 1 the threshold would grow", "Use at least 1")
        if self.minimum > self.start:
            raise InvalidArgument(
                "clip.minimum", self.minimum, f"it lies above clip.start={self.start:g}", "Use a smaller minimum"
            )

    def threshold_at(self, context: Context) -> float:
        return max(self.start * float(self.ratio ** (-context.step / context.steps)), self.minimum)
