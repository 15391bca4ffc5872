"""One threshold for the whole run."""

from __future__ import annotations

from dataclasses import dataclass

from apportion.strategies.clip.clip_schedule import ClipSchedule
from apportion.strategies.context import Context
from apportion.validate import checked, positive


@dataclass(frozen=True)
class Fixed(ClipSchedule):
    """C_t = C.

    Args:
        threshold: C, the largest L2 norm that the gradient of one record may have.

    Source: Abadi et al., Deep Learning with Differential Privacy, CCS 2016, algorithm 1.
    Guarantee: one record moves the sum by at most C.

    Examples:
        >>> from apportion.strategies import Context, clip
        >>> shapes = {"conv.weight": (8, 9), "out.weight": (10, 8)}
        >>> first = Context(step=1, steps=100, sample_rate=0.1, parameter_shapes=shapes)
        >>> [release.threshold for release in clip.Fixed(1.0).propose(None, first)]
        [1.0]
        >>> [round(release.threshold, 4) for release in clip.Fixed(1.0, groups="layer").propose(None, first)]
        [0.7071, 0.7071]
    """

    threshold: float = checked(1.0, positive, "it bounds what one record can do")

    def threshold_at(self, context: Context) -> float:
        return self.threshold
