"""Advanced composition of amplified (ε₀, δ₀) steps: how DP training was priced before moments were tracked.

1. A Gaussian release with multiplier z is (ε₀, δ₀)-DP with δ₀ = Φ(−ε₀z + 1/(2z)) − e^{ε₀}·Φ(−ε₀z − 1/(2z)) (Balle & Wang 2018).
2. On a Poisson batch with rate q it is (ln(1 + q·(e^{ε₀} − 1)), q·δ₀)-DP (Balle, Barthe & Gaboardi 2018).
3. Steps (ε_t, δ_t), which may differ, are together (ε, 1 − (1 − δ̃)·Π_t(1 − δ_t))-DP for every δ̃ > 0, with ε the smallest of
   Σ ε_t,  K + √(2S·ln(1/δ̃))  and  K + √(2S·ln(e + √S/δ̃)),  where K = Σ ε_t·tanh(ε_t/2) and S = Σ ε_t²
   (Kairouz, Oh & Viswanath 2015, theorem 3.5; tanh(ε/2) = (e^ε − 1)/(e^ε + 1)).

Half of δ goes to δ̃ and half to the steps, each δ_t = δ/(2T), so the total is at most δ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from apportion import validate
from apportion.accounting.buckets import require_gaussian
from apportion.accounting.gaussian import gaussian_epsilon
from apportion.event import Event

_ALMOST_ONE = 1 - 1e-12


class AdvancedCompositionAccountant:
    """An upper bound that knows of each step only one point (ε_t, δ_t) of its curve. Loose, for comparison."""

    name = "advanced composition"
    upper_bound = True
    sampling = "Poisson"
    note = "of amplified Gaussian steps; Kairouz, Oh & Viswanath 2015"

    def epsilon(self, events: Mapping[Event, int], delta: float) -> float:
        """ε at `delta` for events that were fixed in advance."""
        validate.delta(delta)
        require_gaussian(events)
        steps = sum(events.values())
        if not steps:
            return 0.0
        slack = delta / 2
        costs = [(n, amplified_epsilon(event, delta / (2 * steps))) for event, n in events.items()]
        plain = math.fsum(n * epsilon for n, epsilon in costs)
        drift = math.fsum(n * epsilon * math.tanh(epsilon / 2) for n, epsilon in costs)
        squares = math.fsum(n * epsilon**2 for n, epsilon in costs)
        spread = min(-math.log(slack), math.log(math.e + math.sqrt(squares) / slack))
        return min(plain, drift + math.sqrt(2 * squares * spread))


def amplified_epsilon(event: Event, delta: float) -> float:
    """The ε of one step at δ_t = `delta`: ln(1 + q·(e^{ε₀} − 1)), where the release without sampling has δ₀ = δ_t/q."""
    rate = event.sample_rate
    unsampled = gaussian_epsilon(1 / event.noise_multiplier, min(delta / rate, _ALMOST_ONE))
    if unsampled > 30:  # the same without e^{ε₀}, which overflows from 710
        return unsampled + math.log(rate + (1 - rate) * math.exp(-unsampled))
    return math.log1p(rate * math.expm1(unsampled))
