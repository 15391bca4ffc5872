"""Sums of whole numbers over the records, released part by part, and put together to one estimate for everybody.

A count, a histogram and a mean are all the same question: each record contributes a vector of whole numbers with L1 norm at most Δ.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from apportion.curator.randomness import DrawStreams, Stream
from apportion.statistics.discrete_noise import draw_discrete_laplace
from apportion.statistics.personal import Method, Part
from apportion.statistics.roster import Roster

Whole = NDArray[np.int64] | NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Estimate:
    """Of the sums over everybody.

    Args:
        totals: the sums.
        noise_variance: of each, by the noise.
        sampling_factor: how much variance sampling adds to a count, for each counted record.
    """

    totals: NDArray[np.float64]
    noise_variance: float
    sampling_factor: float


def estimate_sums(
    contributions: Whole,
    sensitivity: int,
    roster: Roster,
    method: Method,
    draw: DrawStreams,
) -> Estimate:
    """Each part's noisy sum over Σ_p r_p·π_p, weighted by one over the variance that public facts predict.

    Args:
        contributions: one row of whole numbers for each record, of L1 norm at most `sensitivity`; zeros for somebody without a value.
    """
    parts = method.parts(roster)
    precisions = np.array([1 / method.predicted_variance(part, roster) for part in parts])
    totals, noise, sampling = np.zeros(contributions.shape[1]), 0.0, 0.0
    for part, weight in zip(parts, (precisions / precisions.sum()).tolist(), strict=True):
        noisy = release_sum(contributions[draw_sample(part, roster, draw.coins)], sensitivity, part.epsilon, draw.noise)
        totals += weight * np.array(noisy, dtype=np.float64) / part.mean_rate(roster)
        noise += weight**2 * part.noise_variance(roster, sensitivity)
        sampling += weight**2 * part.sampling_factor(roster)
    return Estimate(totals, noise, sampling)


def draw_sample(part: Part, roster: Roster, coins: Stream) -> NDArray[np.bool_]:
    """Who is in the sample: each record with a coin of its own, true with probability ⌊π_p·2⁶⁴⌋/2⁶⁴ for its level p."""
    words = coins.words(len(roster.level))
    chosen = np.zeros(len(roster.level), dtype=bool)
    for level, rate in enumerate(part.rates):
        mine = roster.level == level
        chosen[mine] = True if rate == 1 else words[mine] < np.uint64(int(rate * 2**64))
    return chosen


def release_sum(contributions: Whole, sensitivity: int, epsilon: float, noise: Stream) -> list[int]:
    """Σ_i v_i + discrete Laplace noise of scale Δ/ε on every coordinate: ε-DP for ‖v_i‖₁ ≤ Δ = `sensitivity`."""
    scale = sensitivity / Fraction(epsilon)
    return [int(exact) + draw_discrete_laplace(scale, noise) for exact in contributions.sum(axis=0, dtype=np.int64)]
