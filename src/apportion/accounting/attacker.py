"""What an attacker could do: (ε, δ) in the words of a membership test.

An attacker who sees everything that was released decides whether a record was in the data. With false-positive rate α the true-positive
rate is at most min over ε ≥ 0 of  e^ε·α + δ(ε)  and of  1 − e^{−ε}(1 − α − δ(ε)), in whichever direction is worse for the record. The
advantage, the largest difference of the two rates, is δ(0). (Wasserman and Zhou 2010; Kairouz, Oh and Viswanath 2015.)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from apportion import validate

Profile = Callable[[float], float]
"""ε ↦ δ(ε), for example `PrivacyLossAccountant().profile(events)`."""

_EPSILONS = np.concatenate([[0.0], np.geomspace(1e-3, 100.0, 400)])


def true_positive_rate(profile: Profile, false_positive_rate: float) -> float:
    """The most that any membership test can achieve at this false-positive rate."""
    alpha = validate.in_open_unit("false_positive_rate", false_positive_rate, "it is a rate of mistakes", "Try 0.001")
    deltas = np.array([profile(float(epsilon)) for epsilon in _EPSILONS])
    steep, flat = np.exp(_EPSILONS) * alpha + deltas, 1 - np.exp(-_EPSILONS) * (1 - alpha - deltas)
    return float(min(steep.min(), flat.min(), 1.0))


def advantage(profile: Profile) -> float:
    """The largest (true-positive rate − false-positive rate): δ(0)."""
    return profile(0.0)
