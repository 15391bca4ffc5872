"""Gaussian differential privacy in closed form: the pair N(μ, 1), N(0, 1)."""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ(ε) = Φ(−ε/μ + μ/2) − e^ε·Φ(−ε/μ − μ/2)."""
    if mu <= 0:
        return max(0.0, -math.expm1(epsilon))
    first, second = -epsilon / mu + mu / 2, -epsilon / mu - mu / 2
    return max(0.0, float(ndtr(first)) - math.exp(min(epsilon + float(log_ndtr(second)), 0.0)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest ε ≥ 0 with δ(ε) ≤ `delta`, rounded up by the tolerance of the root finder."""
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(mu, high) > delta:
        high *= 2
    root = float(brentq(lambda epsilon: gaussian_delta(mu, epsilon) - delta, 0.0, high, xtol=1e-14, rtol=1e-13))
    return root * (1 + 1e-11)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest μ whose pair is (ε, δ)-DP, rounded down by the tolerance of the root finder; 0 if even 1e-12 is too large."""
    low, high = 1e-12, 1.0
    if gaussian_delta(low, epsilon) >= delta:
        return 0.0
    while gaussian_delta(high, epsilon) < delta:
        high *= 2
    root = float(brentq(lambda mu: gaussian_delta(mu, epsilon) - delta, low, high, xtol=1e-15, rtol=1e-13))
    return root * (1 - 1e-11)
