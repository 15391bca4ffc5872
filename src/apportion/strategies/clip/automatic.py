"""Every gradient is scaled to nearly the same norm, so that no threshold has to be found."""

from __future__ import annotations

from dataclasses import dataclass, replace

from apportion.releases import ClippedSum
from apportion.strategies.clip.clip_schedule import ClipSchedule
from apportion.strategies.context import Context
from apportion.validate import checked, positive


@dataclass(frozen=True)
class Automatic(ClipSchedule):
    """Record i contributes g_i·C/(‖g_i‖ + γ) instead of a clipped gradient; with groups, each group of it on its own.

    Small gradients grow and large ones shrink. C only scales the answer, noise included, so the learning rate takes its part.

    Args:
        threshold: C.
        stabiliser: γ > 0. Without it a record's gradient would lose its size altogether, and training could stop short of the
            minimum; with it gradients far below γ stay small.

    Source: Bu et al., Automatic Clipping: Differentially Private Deep Learning Made Easier and Stronger (AUTO-S).
    Guarantee: the contribution of a record is shorter than C, so one record moves the sum by less than C.

    Examples:
        >>> from apportion.strategies import Context, clip
        >>> [release] = clip.Automatic(threshold=1.0).propose(None, Context(step=1, steps=100, sample_rate=0.1))
        >>> [round(norm * release.threshold / (norm + release.stabiliser), 3) for norm in (0.01, 1.0, 100.0)]
        [0.5, 0.99, 1.0]
    """

    threshold: float = checked(1.0, positive, "it bounds what one record can do")
    stabiliser: float = checked(0.01, positive, "it keeps the quotient finite for a gradient of zero")

    def threshold_at(self, context: Context) -> float:
        return self.threshold

    def propose(self, state: None, context: Context) -> tuple[ClippedSum, ...]:
        return tuple(replace(release, stabiliser=self.stabiliser) for release in super().propose(state, context))
