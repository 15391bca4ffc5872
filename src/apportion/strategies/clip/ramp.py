"""Thresholds that fall to their half along a ramp: alone, or while the multiplier rises as much."""

from __future__ import annotations

from dataclasses import dataclass, field

from apportion.strategies.clip.clip_schedule import ClipSchedule
from apportion.strategies.context import Context
from apportion.strategies.noise.noise_schedule import MULTIPLIER
from apportion.validate import checked, positive, whole


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

    Examples:
        >>> from apportion.strategies import Context, clip
        >>> falling = clip.LinearDecay(start=3.0, ramp_steps=100)
        >>> [falling.threshold_at(Context(step, steps=500, sample_rate=0.1)) for step in (50, 100, 500)]
        [2.0, 1.5, 1.5]
    """

    start: float = checked(1.0, positive, "it bounds what one record can do")
    ramp_steps: int | None = checked(
        None, whole, "it is how many steps the threshold falls", "Leave it out for all steps of the run"
    )

    def threshold_at(self, context: Context) -> float:
        return self.start / ramp(context.step, self.ramp_steps or context.steps)


@dataclass(frozen=True)
class FixedDeviation(ClipSchedule):
    """C_t = C/r_t and z_t = z·r_t with r_t = min(2, 1 + t/T_r), for t = 1, 2, …: the standard deviation C_t·z_t = C·z is constant.

    The noise stays the same, and later steps cost less. This strategy owns two roles. Pass it as `clip` and leave `noise` out.

    Args:
        start: C.
        ramp_steps: T_r, a number of steps and not a part of the run, so that both roles agree on it also where the budget affords
            fewer steps than were asked for.
        multiplier: z. `None`: the smallest that the budget allows.

    Source: the program that accompanies Yu D., Zhang and Chen, Improve the Gradient Perturbation Approach for Differentially Private
    Optimization, where this is the default.
    Guarantee: one record moves the sum by at most C_t. All z_t are known before the run, so exact composition prices them.

    Examples:
        >>> from apportion.strategies import Context, clip
        >>> both = clip.FixedDeviation(start=1.0, ramp_steps=100)
        >>> last = Context(step=100, steps=100, sample_rate=0.1)
        >>> both.threshold_at(last), both.relative(last)
        (0.5, 2.0)
    """

    start: float = checked(1.0, positive, "it bounds what one record can do")
    ramp_steps: int = checked(500, whole, "it is how many steps the threshold falls")
    multiplier: float | None = field(default=None, metadata=MULTIPLIER)

    def threshold_at(self, context: Context) -> float:
        return self.start / ramp(context.step, self.ramp_steps)

    def relative(self, context: Context) -> float:
        """z_t/z: the noise role."""
        return ramp(context.step, self.ramp_steps)
