"""The decay that comes closest to thresholds that were found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from apportion.errors import InvalidArgument


@dataclass(frozen=True)
class Fit:
    """C_t = C₀/t^a: what `clip.Decay` takes as `start` and `power`, if 0 < a ≤ 1."""

    start: float
    power: float

    @property
    def decays(self) -> bool:
        """Whether `clip.Decay` can follow it."""
        return 0 < self.power <= 1


def fit_decay(thresholds: Sequence[float]) -> Fit:
    """Least squares in logarithms: minimises Σ_t (ln C_t − ln C₀ + a·ln t)² over C₀ and a, t = 1, 2, …"""
    if len(thresholds) < 2:
        raise InvalidArgument(
            "epochs", len(thresholds), "a decay cannot be fitted to one threshold", "Search at least two epochs"
        )
    slope, intercept = np.polyfit(np.log(np.arange(1, len(thresholds) + 1)), np.log(thresholds), 1)
    return Fit(float(np.exp(intercept)), -float(slope))
