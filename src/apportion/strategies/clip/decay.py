"""A threshold that falls with the epochs, as gradients do."""

from __future__ import annotations

from dataclasses import dataclass

from apportion import validate
from apportion.errors import InvalidArgument
from apportion.strategies.clip.clip_schedule import ClipSchedule
from apportion.strategies.context import Context


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
    """

    start: float = 1.0
    power: float = 0.5
    minimum: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.store(
            self,
            start=validate.positive("clip.start", self.start, "it bounds what one record can do", "Try start=1.0"),
            power=validate.probability(
                "clip.power", self.power, "0 does not decay, more than 1 collapses", "Try power=0.5"
            ),
            minimum=validate.positive("clip.minimum", self.minimum, "0 would release noise only", "Try minimum=1e-3"),
        )
        if self.minimum > self.start:
            raise InvalidArgument(
                "clip.minimum", self.minimum, f"it lies above clip.start={self.start:g}", "Use a smaller minimum"
            )

    def threshold_at(self, context: Context) -> float:
        return max(self.start / float(context.epoch**self.power), self.minimum)
