"""Sums of whole numbers over the records, released part by part, and put together to one estimate for everybody.

A count, a histogram and a mean are all the same question: each record contributes a vector of whole numbers with L1 norm at most Δ.
"""

from __future__ import annotations

from collections.abc import Sequence
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
        sampling_factor: the variance that comes of who was drawn, or has which level, for each counted record.
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
    """Σ_k w_k·(noisy sum of part k)/π̄_k, π̄_k = Σ_p r_p·π_kp, with the weights of least variance by public facts.

    The levels of those who contribute are taken for a draw from the shares. Then two parts have, for each counted record, the covariance
    Σ_p r_p·π_kp·π_lp/(π̄_k·π̄_l) − 1, and one part has the variance 1/π̄_k − 1. Noise is added to that; w ∝ V⁻¹·1. Without a declared
    population noise alone counts, and weights are one over its variance.

    Args:
        contributions: one row of whole numbers for each record, of L1 norm at most `sensitivity`; zeros for somebody without a value.
    """
    parts = method.parts(roster)
    sampling = _sampling_covariance(parts, roster)
    noise = np.diag([part.noise_variance(roster) for part in parts])
    weights = np.linalg.solve(noise + method.population * sampling, np.ones(len(parts)))
    weights /= weights.sum()
    totals = np.zeros(contributions.shape[1])
    for part, weight in zip(parts, weights, strict=True):
        noisy = release_sum(contributions[draw_sample(part, roster, draw.coins)], sensitivity, part.epsilon, draw.noise)
        totals += weight * np.array(noisy, dtype=np.float64) / part.mean_rate(roster)
    variances = [part.noise_variance(roster, sensitivity) for part in parts]
    return Estimate(totals, float(weights**2 @ variances), max(0.0, float(weights @ sampling @ weights)))


def _sampling_covariance(parts: Sequence[Part], roster: Roster) -> NDArray[np.float64]:
    rates = np.array([part.rates for part in parts]) / [[part.mean_rate(roster)] for part in parts]
    covariance = (rates * roster.shares) @ rates.T - 1
    covariance[np.diag_indices(len(parts))] = [1 / part.mean_rate(roster) - 1 for part in parts]
    return np.asarray(covariance)


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
