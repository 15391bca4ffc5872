"""A threshold that finds a quantile of the gradient norms, from a noisy count of how many lie below it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from apportion.errors import InvalidArgument
from apportion.releases import Noised, UnclippedCount
from apportion.request import Released
from apportion.strategies.clip.adaptive import Adaptive
from apportion.strategies.context import Context
from apportion.validate import checked, in_closed_unit, in_open_unit, one_of, positive

Update = Literal["geometric", "arithmetic"]
Thresholds = tuple[float, ...]
_LARGEST_EXPONENT = 700.0  # math.exp overflows a little above


@dataclass(frozen=True)
class Quantile(Adaptive):
    """C ← C·exp(−η·(b̃ − γ)), where b̃ is the noisy fraction of records whose norm is at most C; for each group of parameters.

    With each gradient K counts are released, one for each group: b̃ = ½ + (Σ_i (1[‖g_i‖ ≤ C] − ½) + N(0, σ_b²))/B, brought into [0, 1].
    A record moves such a count by ½, so they use the part K·(z/(2σ_b))² of the step's budget, and the gradient the rest: its own
    multiplier becomes z_Δ = (z⁻² − K·(2σ_b)⁻²)^(−½).

    Args:
        start: C₀.
        quantile: γ in [0, 1], the fraction that shall not be clipped.
        rate: η > 0.
        count_noise: σ_b, the standard deviation of each count's noise, in records; B/20 if neither it nor `share` is given.
        share: the part r of the step's budget for all counts together, instead of `count_noise`: σ_b = (z/2)·√(K/r).
        update: "geometric" as above, or "arithmetic": C ← C − η·(b̃ − γ).

    Source: Andrew et al., Differentially Private Learning with Adaptive Clipping; with groups and `share`, He et al., Exploring the
    Limits of Differentially Private Deep Learning with Group-wise Clipping (there, the exponent of 2σ_b has lost its sign in print).
    Guarantee: gradient and counts together have the multiplier z. B is the declared batch size; the realised one is private.

    Examples:
        >>> from apportion.request import Released, Request
        >>> from apportion.strategies import Context, clip
        >>> adaptive = clip.Quantile(start=1.0, quantile=0.5, share=0.01)
        >>> releases = adaptive.propose((1.0,), Context(step=1, steps=100, sample_rate=0.1))
        >>> [(type(release).__name__, release.share) for release in releases]
        [('ClippedSum', 0.99), ('UnclippedCount', 0.01)]
        >>> released = Released(Request(0.1, 1.0, 100.0, releases), {}, statistics=(0.3,))  # b̃ = 0.8: too few are clipped
        >>> [round(threshold, 3) for threshold in adaptive.observe((1.0,), released)]  # exp(−0.2·(0.8 − 0.5))
        [0.942]
    """

    quantile: float = checked(0.5, in_closed_unit, "it is a fraction of all records")
    rate: float = checked(0.2, positive, "at 0 the counts would be paid for and not used")
    count_noise: float | None = checked(
        None, positive, "a count without noise would be a raw read", "Leave it out for batch_size/20"
    )
    share: float | None = checked(None, in_open_unit, "gradient and counts divide one budget", "Try share=0.01")
    update: Update = checked("geometric", one_of(*get_args(Update)), "the threshold is moved in one of two ways")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.count_noise is not None and self.share is not None:
            reason = f"share={self.share!r} was given as well, and each determines the other"
            raise InvalidArgument("clip.count_noise", self.count_noise, reason, "Pass one of them")

    def init(self, context: Context) -> Thresholds:
        return self.first_thresholds(context)

    def propose(self, state: Thresholds, context: Context) -> tuple[Noised, ...]:
        counts = self._share_of_counts(context, len(state))
        sums = self.clipped_sums(context, state, share=1 - counts)
        return (*sums, *(UnclippedCount(one.threshold, one.parameters, counts / len(state)) for one in sums))

    def observe(self, state: Thresholds, released: Released) -> Thresholds:
        fractions = [min(max(0.5 + statistic, 0.0), 1.0) for statistic in released.statistics]
        return tuple(
            self.clamp(self._move(threshold, self.rate * (fraction - self.quantile)))
            for threshold, fraction in zip(state, fractions, strict=True)
        )

    def _move(self, threshold: float, excess: float) -> float:
        if self.update == "arithmetic":
            return threshold - excess
        return threshold * math.exp(min(-excess, _LARGEST_EXPONENT))

    def _share_of_counts(self, context: Context, groups: int) -> float:
        """K·(z/(2σ_b))², which must leave something for the gradient."""
        if self.share is not None:
            return self.share
        deviation = context.expected_batch_size / 20 if self.count_noise is None else self.count_noise
        multiplier = context.noise_multiplier
        share = groups * (multiplier / (2 * deviation)) ** 2
        if share >= 1:
            enough = multiplier * math.sqrt(groups) / 2
            default = " (batch_size/20, because none was given)" if self.count_noise is None else ""
            raise InvalidArgument(
                "clip.count_noise",
                deviation,
                f"with a noise multiplier of {multiplier:.4g} and {groups} counts{default}, nothing is left of the step's budget "
                f"for the gradient: more than {enough:.4g} is needed",
                f"Use count_noise={10 * enough:.3g}, which takes 1 % of the budget, or share=0.01; or a larger batch",
            )
        return share
