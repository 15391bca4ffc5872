"""A threshold that falls while the multiplier rises: the noise stays the same, and later steps cost less."""

from __future__ import annotations

from dataclasses import dataclass

from apportion import validate
from apportion.strategies.clip.clip_schedule import ClipSchedule
from apportion.strategies.clip.linear_decay import ramp
from apportion.strategies.context import Context


@dataclass(frozen=True)
class FixedDeviation(ClipSchedule):
    """C_t = C/r_t and z_t = z·r_t with r_t = min(2, 1 + t/T_r), for t = 1, 2, …: the standard deviation C_t·z_t = C·z is constant.

    This strategy owns two roles. Pass it as `clip` and leave `noise` out.

    Args:
        start: C.
        ramp_steps: T_r, a number of steps and not a part of the run, so that both roles agree on it also where the budget affords
            fewer steps than were asked for.
        multiplier: z. `None`: the smallest that the budget allows.

    Source: the program that accompanies Yu D., Zhang and Chen, Improve the Gradient Perturbation Approach for Differentially Private
    Optimization, where this is the default.
    Guarantee: one record moves the sum by at most C_t. All z_t are known before the run, so exact composition prices them.
    """

    start: float = 1.0
    ramp_steps: int = 500
    multiplier: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        bound, length = "it bounds what one record can do", "it is how many steps the threshold falls"
        validate.store(
            self,
            start=validate.positive("clip.start", self.start, bound, "Try start=1.0"),
            ramp_steps=validate.whole("clip.ramp_steps", self.ramp_steps, length, "Try ramp_steps=500"),
        )
        if self.multiplier is not None:
            reason, fix = "without noise there is no privacy", "Leave it out to fit the budget"
            validate.store(self, multiplier=validate.positive("clip.multiplier", self.multiplier, reason, fix))

    def threshold_at(self, context: Context) -> float:
        return self.start / ramp(context.step, self.ramp_steps)

    def relative(self, context: Context) -> float:
        """z_t/z: the noise role."""
        return ramp(context.step, self.ramp_steps)
