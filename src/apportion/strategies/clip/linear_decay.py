"""A threshold that falls to its half along a ramp."""

from __future__ import annotations

from dataclasses import dataclass

from apportion import validate
from apportion.strategies.clip.clip_schedule import ClipSchedule
from apportion.strategies.context import Context


def ramp(step: int, length: int) -> float:
    """min(2, 1 + t/T_r): from a little above 1 to 2 at step T_r, and 2 from there on."""
    return min(2.0, 1.0 + step / length)


@dataclass(frozen=True)
class LinearDecay(ClipSchedule):
    """C_t = C / min(2, 1 + t/T_r), where t = 1, 2, … is the step. The noise falls with it.

    Args:
        start: C. C_t is C/2 from step T_r on.
        ramp_steps: T_r; all steps of the run if it is not given, as Lin et al. read it. The authors' own program uses 500.

    Source: Yu D., Zhang and Chen, Improve the Gradient Perturbation Approach for Differentially Private Optimization. A later paper
    prints 1 + 1/T, which would not depend on t.
    Guarantee: one record moves the sum by at most C_t; the price is that of a fixed threshold.
    """

    start: float = 1.0
    ramp_steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        reason = "it bounds what one record can do"
        validate.store(self, start=validate.positive("clip.start", self.start, reason, "Try start=1.0"))
        if self.ramp_steps is not None:
            reason, fix = "it is how many steps the threshold falls", "Leave it out for all steps of the run"
            validate.store(self, ramp_steps=validate.whole("clip.ramp_steps", self.ramp_steps, reason, fix))

    def threshold_at(self, context: Context) -> float:
        return self.start / ramp(context.step, self.ramp_steps or context.steps)
