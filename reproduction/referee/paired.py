"""Paired differences over seeds, and verdicts that stay true when many methods are compared."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.stats import t

from apportion.errors import InvalidArgument

LEVEL = 0.05
"""The chance of any wrong "better" or "worse" in one table."""
Verdict = Literal["better", "worse", "no difference shown"]


@dataclass(frozen=True)
class Difference:
    """The mean of x_s − y_s over seeds s, with the half-width h of its 95 % interval and the p-value of "it is 0".

    With n seeds and the standard deviation d of the differences, h = t(0.975, n − 1)·d/√n, of Student's distribution.
    """

    mean: float
    half_width: float
    p_value: float
    seeds: int

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width


def paired_difference(ours: Mapping[int, float], baseline: Mapping[int, float]) -> Difference:
    """The difference over the seeds that both have.

    Args:
        ours, baseline: a score for each seed.
    """
    seeds = sorted(set(ours) & set(baseline))
    if len(seeds) < 2:
        reason = "an interval needs two seeds that both methods were run with"
        raise InvalidArgument("ours", sorted(ours), reason, "Run more seeds")
    differences = [ours[seed] - baseline[seed] for seed in seeds]
    mean, count = statistics.fmean(differences), len(seeds)
    error = statistics.stdev(differences) / math.sqrt(count)
    half_width = float(t.ppf(1 - LEVEL / 2, count - 1)) * error
    if error == 0:
        return Difference(mean, 0.0, 1.0 if mean == 0 else 0.0, count)
    return Difference(mean, half_width, 2 * float(t.sf(abs(mean) / error, count - 1)), count)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values: of m in rising order, p̃_k = max over j ≤ k of min(1, (m − j + 1)·p_j).

    Source: Holm, A simple sequentially rejective multiple test procedure, 1979.
    Guarantee: to call those below the level different makes any mistake with at most that chance, whatever they have in common.
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = least
    return adjusted


def verdicts(differences: Sequence[Difference]) -> list[Verdict]:
    """What may be said of each, with Holm's correction for their number."""
    adjusted = holm([one.p_value for one in differences])
    return [
        "no difference shown" if p >= LEVEL else "better" if one.mean > 0 else "worse"
        for one, p in zip(differences, adjusted, strict=True)
    ]
