"""A threshold that falls with the epochs, as gradients do."""

from __future__ import annotations

from dataclasses import dataclass

from apportion.strategies.clip.clip_schedule import ClipSchedule, require_floor
from apportion.strategies.context import Context
from apportion.validate import checked, positive, probability


@dataclass(frozen=True)
class Decay(ClipSchedule):
    """C_t = max(C₀ / t^a, C_min), where t = 1, 2, … is the epoch.

    The multiplier stays the same, so the noise falls with the threshold. Where most records are clipped, the size of a step
    falls with it too: a decaying clip is partly a decaying learning rate.

    Args:
        start: C₀, the threshold of the first epoch. Choose it on public data, or treat it as a hyper-parameter.
        power: a in (0, 1].
        minimum: C_min, a floor for long runs.

    Source: Lin et al., Decay clipping; a = 0.5 was best on their four data sets.
    Guarantee: one record moves the sum by at most C_t; the price is that of a fixed threshold.

    Examples:
        >>> from apportion.strategies import Context, clip
        >>> falling = clip.Decay(start=1.0, power=0.5)
        >>> [falling.threshold_at(Context(step, steps=90, sample_rate=0.1)) for step in (1, 10, 31, 90)]  # epochs 1, 1, 4, 9
        [1.0, 1.0, 0.5, 0.3333333333333333]
    """

    start: float = checked(1.0, positive, "it bounds what one record can do")
    power: float = checked(0.5, probability, "0 does not decay, more than 1 collapses")
    minimum: float = checked(1e-3, positive, "0 would release noise only")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_floor(self.minimum, self.start)

    def threshold_at(self, context: Context) -> float:
        return max(self.start / float(context.epoch**self.power), self.minimum)
