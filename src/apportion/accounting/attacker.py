"""What an attacker could do: (ε, δ) in the words of a membership test.

An attacker who sees everything that was released decides whether a record was in the data. With false-positive rate α the true-positive
rate is at most min over ε ≥ 0 of  e^ε·α + δ(ε)  and of  1 − e^{−ε}(1 − α − δ(ε)), in whichever direction is worse for the record. The
advantage, the largest difference of the two rates, is δ(0). (Wasserman and Zhou 2010; Kairouz, Oh and Viswanath 2015.)
"""

from __future__ import annotations

import numpy as np

from apportion import validate
from apportion.accounting.composition import Curve


def true_positive_rate(curve: Curve, false_positive_rate: float) -> float:
    """The most that any membership test can achieve at this false-positive rate."""
    alpha = validate.in_open_unit("false_positive_rate", false_positive_rate, "it is a rate of mistakes", "Try 0.001")
    bounds = []
    for side in (curve.removed, curve.added):
        points = np.concatenate([[0.0], side.losses[:: max(1, len(side.losses) // 4000)]])
        deltas = np.array([side.delta(float(point)) for point in points])
        with np.errstate(over="ignore"):
            bounds.append(
                min(np.min(np.exp(points) * alpha + deltas), np.min(1 - np.exp(-points) * (1 - alpha - deltas)), 1.0)
            )
    return float(max(bounds))


def advantage(curve: Curve) -> float:
    """The largest (true-positive rate − false-positive rate): δ(0)."""
    return curve.delta(0.0)
