"""The central limit of Gaussian differential privacy: good for planning, **not an upper bound**.

A step with rate q_t on a Gaussian release with μ_t = 1/z_t. As the number of steps grows and q·√T stays bounded, the composition
tends to the pair N(0, 1), N(μ, 1) with

    μ² = Σ_t q_t²·(e^{μ_t²} − 1)

(Bu, Dong, Long & Su 2020 for equal steps, μ = q·√(T·(e^{1/z²} − 1)); Du et al. 2021 for growing μ_t). e^{μ²} − 1 is the
χ² divergence of N(μ, 1) from N(0, 1). A limit is not a bound: in every schedule of the tests the true ε is larger, by 0.1 % with much
noise, and more than twice as large where a schedule ends with little.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from scipy.optimize import brentq

from apportion import validate
from apportion.accounting.buckets import require_gaussian
from apportion.accounting.gaussian import gaussian_epsilon, gaussian_mu
from apportion.errors import InvalidArgument
from apportion.event import Event

_LARGEST_EXPONENT = 700.0  # e^709 is the largest float


class CentralLimitAccountant:
    """ε in the limit of many steps. Guarantees nothing: plan with it if a paper did, and report another accountant's number."""

    name = "GDP central limit (not an upper bound)"
    upper_bound = False
    sampling = "Poisson"
    note = "the limit of many steps; Bu et al. 2020, for changing noise Du et al. 2021; for planning only"

    def epsilon(self, events: Mapping[Event, int], delta: float) -> float:
        """What the limit says. The truth is usually larger."""
        validate.delta(delta)
        mu = central_limit_mu(events)
        return gaussian_epsilon(mu, delta) if mu else 0.0


def central_limit_mu(events: Mapping[Event, int]) -> float:
    """μ = √(Σ_t q_t²·(e^{1/z_t²} − 1))."""
    require_gaussian(events)
    smallest = min((event.noise_multiplier for event in events), default=math.inf)
    if smallest**-2 > _LARGEST_EXPONENT:
        raise InvalidArgument(
            "noise_multiplier", smallest, "e^(1/z²) overflows: no limit theorem speaks about so little noise", "Use PLD"
        )
    return math.sqrt(math.fsum(n * e.sample_rate**2 * math.expm1(e.noise_multiplier**-2) for e, n in events.items()))


def growing_mu(*, sample_rate: float, steps: int, growth: float, epsilon: float, delta: float) -> float:
    """μ₀ for which the steps μ_t = μ₀·ρ^{t/T}, t = 1..T, have the limit (ε, δ): the plan of Du et al.

    Args:
        sample_rate: q.
        steps: T.
        growth: ρ = μ_T/μ₀ ≥ 1; 1 means constant noise.
        epsilon: ε of the plan. The steps really cost more.
        delta: δ.
    """
    validate.probability("sample_rate", sample_rate, "it is a probability", "Use batch_size / population")
    validate.whole("steps", steps, "it is a number of updates", "Use at least one step")
    validate.positive("epsilon", epsilon, "it is a privacy loss", "Use epsilon > 0")
    validate.delta(delta)
    if validate.positive("growth", growth, "it is a ratio", "Use growth=1 for constant noise") < 1:
        raise InvalidArgument("growth", growth, "below 1 the noise would grow", "Use growth >= 1")
    mean_square = (gaussian_mu(epsilon, delta) / sample_rate) ** 2 / steps
    uniform = math.sqrt(math.log1p(mean_square))
    if growth == 1:
        return uniform
    squares = growth ** (2 * np.arange(1, steps + 1) / steps)

    def excess(mu: float) -> float:
        exponents = np.minimum(mu**2 * squares, _LARGEST_EXPONENT)  # far too large is as good as infinite
        return float(np.mean(np.expm1(exponents))) - mean_square

    return float(brentq(excess, uniform / growth * (1 - 1e-9), uniform, xtol=1e-15, rtol=1e-13))
