"""Thresholds from a noisy histogram of the gradient norms: a percentile of it, or the least error that noise and clipping make together.

**The histogram.** With each gradient, counts h̃_j of the norms at 20 points between 0 and R are released (`NormHistogram`), for each
group of parameters, with noise of standard deviation σ_H = z·√(K/r), where r is the share of all K of them in the step's budget. Their
total ñ = Σ_j h̃_j must be positive, or nothing is learned from them. The distribution is the nearest one to h̃/ñ: h_j = max(h̃_j − τ, 0)/ñ
with Σ_j h_j = 1. To set counts below 0 to 0 would leave the noise of many empty points, all on one side.

**Its range.** R is doubled for the next step if more than half of the norms are at its end, and halved if fewer than a twentieth are in
its upper half.

Source: Wei et al., DC-SGD: Differentially Private SGD with Dynamic Clipping through Gradient Norm Distribution Estimation. Of the paper
itself we could read the abstract; its formulas are those of a public summary, and the number of bins and how the range follows are those of
a published implementation. Ours are the counts at points in place of bins with sharp edges (`NormHistogram` says why), the nearest
distribution in place of a division by ñ alone, R₀ = 4·C₀, and the exact minimum below in place of a search among candidates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from apportion.releases import Noised, NormHistogram
from apportion.request import Released
from apportion.strategies.clip.adaptive import Adaptive
from apportion.strategies.context import Context
from apportion.validate import checked, in_open_unit

POINTS = 20
FIRST_RANGE = 4.0  # thresholds

Numbers = tuple[float, ...]


@dataclass(frozen=True)
class FromHistogram(Adaptive):
    """What both have in common: they ask for histograms, and make distributions of them.

    The state of a group is the range R of the next histogram, and the distribution that the last one showed: its points, and the part of
    the norms at each of them, nothing at first.

    Args:
        share: r.
    """

    share: float = checked(0.05, in_open_unit, "gradient and histograms divide one budget")

    def init(self, context: Context) -> tuple[dict[str, Any], ...]:
        first = self.first_thresholds(context)
        return tuple({"range": self.clamp(FIRST_RANGE * one), "points": (), "parts": ()} for one in first)

    def propose(self, state: tuple[dict[str, Any], ...], context: Context) -> tuple[Noised, ...]:
        thresholds = tuple(
            self.clamp(self.choose(group["points"], group["parts"], noise)) if group["parts"] else first
            for group, noise, first in zip(
                state, self._noise_of_groups(context), self.first_thresholds(context), strict=True
            )
        )
        sums = self.clipped_sums(context, thresholds, share=1 - self.share)
        histograms = (
            NormHistogram(spread_points(group["range"]), one.parameters, self.share / len(sums))
            for one, group in zip(sums, state, strict=True)
        )
        return (*sums, *histograms)

    def observe(self, state: tuple[dict[str, Any], ...], released: Released) -> tuple[dict[str, Any], ...]:
        asked = (one for one in released.request.statistics if isinstance(one, NormHistogram))
        return tuple(
            self._learn(group, histogram.points, estimate_distribution(released.answer_to(histogram)))
            for group, histogram in zip(state, asked, strict=True)
        )

    def choose(self, points: Numbers, parts: Numbers, noise: float) -> float:
        """The threshold that suits norms of which the `parts` are at the `points`.

        Args:
            noise: V, so that V·C² is the expected squared norm of the noise in the mean gradient of a group with the threshold C.
        """
        raise NotImplementedError

    @property
    def crowd(self) -> float:
        """Which part of the norms is too much at the end of the range."""
        return 0.5

    def _learn(self, group: dict[str, Any], points: Numbers, parts: Numbers) -> dict[str, Any]:
        if not parts:
            return group
        scale = 1.0
        if parts[-1] > self.crowd:
            scale = 2.0
        elif math.fsum(parts[POINTS // 2 :]) < 1 / POINTS:
            scale = 0.5
        return {"range": self.clamp(scale * points[-1]), "points": points, "parts": parts}

    def _noise_of_groups(self, context: Context) -> Numbers:
        """V = d·z²/((1 − r)·B²) for each group, where d is the number of parameters that share its noise (table in `groups.py`)."""
        groups = self.split(context)
        everything = sum(group.size for group in groups)
        sizes = [len(groups) * group.size if self.allocation == "equal" else everything for group in groups]
        unit = context.noise_multiplier / context.expected_batch_size
        return tuple(max(1, size) * unit**2 / (1 - self.share) for size in sizes)


@dataclass(frozen=True)
class NormPercentile(FromHistogram):
    """C = the norm that a part γ of the last batch does not exceed, as a noisy histogram shows it; for each group of parameters.

    Between two points the norms are taken to be spread evenly. The module's text says what is released.

    Args:
        start: C₀.
        share: r, the part of the step's budget for the histograms.
        percentile: γ, the part of the records that shall not be clipped.

    Source: Wei et al., DC-SGD: Differentially Private SGD with Dynamic Clipping through Gradient Norm Distribution Estimation, DC-SGD-P.
    Guarantee: one record moves a histogram by at most 1, and gradient and histograms together have the multiplier z. Ranges and thresholds
    follow released histograms only.

    Examples:
        >>> from apportion.request import Released, Request
        >>> from apportion.strategies import Context, clip
        >>> adaptive, first = clip.NormPercentile(start=0.5), Context(step=1, steps=100, sample_rate=0.1)
        >>> state = adaptive.init(first)
        >>> releases = adaptive.propose(state, first)
        >>> [(type(release).__name__, release.share) for release in releases]
        [('ClippedSum', 0.95), ('NormHistogram', 0.05)]
        >>> counts = (0.0,) * 9 + (0.5, 0.5) + (0.0,) * 9  # half at each of two points, 18/19 and 20/19
        >>> state = adaptive.observe(state, Released(Request(0.1, 1.0, 100.0, releases), {}, counts))
        >>> round(adaptive.propose(state, first)[0].threshold, 6)
        1.0
    """

    percentile: float = checked(0.5, in_open_unit, "it is a part of all records")

    def choose(self, points: Numbers, parts: Numbers, noise: float) -> float:
        below, lower = 0.0, points[0]
        for point, following, part in zip(points, (*points[1:], points[-1]), parts, strict=True):
            upper = (point + following) / 2
            if below + part >= self.percentile:
                return lower + (upper - lower) * (self.percentile - below) / part
            below, lower = below + part, upper
        return points[-1]

    @property
    def crowd(self) -> float:
        return min(0.5, 1 - self.percentile)  # otherwise the quantile could lie beyond the range for ever


@dataclass(frozen=True)
class LeastError(FromHistogram):
    """C = argmin V·C² + Σ_j h_j·max(p_j − C, 0)², the squared error that noise and clipping make; for each group of parameters.

    The released gradient differs from the mean gradient by noise, whose squared norm is d·(z_Δ·C)²/B² = V·C² on average, where d is the
    number of parameters and z_Δ = z/√(1 − r) the gradient's own multiplier; and by what is clipped, whose squared norm is at most the mean
    of max(‖g_i‖ − C, 0)², by Jensen's inequality. Both are convex in C, so that the minimum is where the slope is 0:
    C = Σ_{p_j > C} h_j·p_j / (V + Σ_{p_j > C} h_j). The module's text says what is released.

    Args:
        start: C₀.
        share: r, the part of the step's budget for the histograms.

    Source: Wei et al., DC-SGD: Differentially Private SGD with Dynamic Clipping through Gradient Norm Distribution Estimation, DC-SGD-E.
    Guarantee: one record moves a histogram by at most 1, and gradient and histograms together have the multiplier z. Ranges and thresholds
    follow released histograms only.

    Examples:
        >>> from apportion.request import Released, Request
        >>> from apportion.strategies import Context, clip
        >>> adaptive = clip.LeastError(start=0.5, share=0.2)
        >>> first = Context(1, 100, 0.1, expected_batch_size=100.0, noise_multiplier=1.0, parameter_shapes={"w": (8000,)})
        >>> state = adaptive.init(first)
        >>> counts = (0.0,) * 19 + (0.4,)  # of those that were drawn, all have a norm of 2 or more
        >>> state = adaptive.observe(state, Released(Request(0.1, 1.0, 100.0, adaptive.propose(state, first)), {}, counts))
        >>> round(adaptive.propose(state, first)[0].threshold, 6)  # V = 8000·1²/(0.8·100²) = 1, and C = 2/(1 + 1)
        1.0
        >>> state[0]["range"]
        4.0
    """

    def choose(self, points: Numbers, parts: Numbers, noise: float) -> float:
        above = weighted = 0.0
        for point, part in zip(reversed(points), reversed(parts), strict=True):
            if weighted / (noise + above) >= point:  # the minimum lies between this point and the one above
                break
            above, weighted = above + part, weighted + part * point
        return weighted / (noise + above)


def spread_points(end: float) -> Numbers:
    """0, R/19, …, R."""
    return tuple(end * number / (POINTS - 1) for number in range(POINTS))


def estimate_distribution(counts: Numbers) -> Numbers:
    """h_j = max(h̃_j − τ, 0)/ñ with Σ_j h_j = 1; nothing if the total ñ of the noisy counts is not positive."""
    total = math.fsum(counts)
    if not total > 0:
        return ()
    shift, largest = 0.0, 0.0
    for number, count in enumerate(sorted(counts, reverse=True), start=1):
        largest += count
        if count > (largest - total) / number:
            shift = (largest - total) / number
    return tuple(max(count - shift, 0.0) / total for count in counts)
