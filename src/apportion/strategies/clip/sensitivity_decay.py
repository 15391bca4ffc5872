"""A threshold that falls geometrically over the run."""

from __future__ import annotations

from dataclasses import dataclass

from apportion.strategies.clip.clip_schedule import ClipSchedule, require_floor
from apportion.strategies.context import Context
from apportion.validate import at_least, checked, positive


@dataclass(frozen=True)
class SensitivityDecay(ClipSchedule):
    """C_t = max(C₀·ρ^(−t/T), C_min), for t = 1..T.

    Args:
        start: C₀.
        ratio: ρ = C₀/C_T ≥ 1; 1 is a fixed threshold.
        minimum: C_min.

    Source: Du et al., Dynamic Differential-Privacy Preserving SGD, sensitivity decay.
    Guarantee: one record moves the sum by at most C_t; the price is that of a fixed threshold.

    Examples:
        >>> from apportion.strategies import Context, clip
        >>> falling = clip.SensitivityDecay(start=2.0, ratio=4.0)
        >>> [falling.threshold_at(Context(step, steps=100, sample_rate=0.1)) for step in (50, 100)]
        [1.0, 0.5]
    """

    start: float = checked(1.5, positive, "it bounds what one record can do")
    ratio: float = checked(2.0, at_least(1), "it is how much the threshold falls, and below 1 the threshold would grow")
    minimum: float = checked(1e-3, positive, "0 would release noise only")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_floor(self.minimum, self.start)

    def threshold_at(self, context: Context) -> float:
        return max(self.start * float(self.ratio ** (-context.step / context.steps)), self.minimum)
