"""One threshold for the whole run."""

from __future__ import annotations

from dataclasses import dataclass

from apportion import validate
from apportion.strategies.clip.clip_schedule import ClipSchedule
from apportion.strategies.context import Context


@dataclass(frozen=True)
class Fixed(ClipSchedule):
    """C_t = C.

    Args:
        threshold: C, the largest L2 norm that the gradient of one record may have.

    Source: Abadi et al., Deep Learning with Differential Privacy, CCS 2016, algorithm 1.
    Guarantee: one record moves the sum by at most C.
    """

    threshold: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        reason = "it bounds what one record can do"
        validate.store(self, threshold=validate.positive("clip.threshold", self.threshold, reason, "Try threshold=1.0"))

    def threshold_at(self, context: Context) -> float:
        return self.threshold
