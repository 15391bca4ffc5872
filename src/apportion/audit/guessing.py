"""From the scores of canaries to guesses who was in the data, and how many of these are right."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from apportion.audit.bounds import ErrorRates

Scores = NDArray[np.float64]
FOR_THRESHOLD = 0.25
"""The part of the canaries that choose the threshold of the test; its errors are counted on the others only."""
_CANDIDATES = 19


def threshold_test(
    scores: Scores, included: NDArray[np.bool_], coins: np.random.Generator, confidence: float
) -> tuple[float, ErrorRates]:
    """Choose the threshold with the largest μ on some canaries; count its errors on the others, for which it is then fixed."""
    choosing = np.zeros(len(scores), dtype=bool)
    choosing[coins.permutation(len(scores))[: round(FOR_THRESHOLD * len(scores))]] = True
    candidates = np.quantile(scores[choosing], np.linspace(0, 1, _CANDIDATES + 2)[1:-1])
    best = max(candidates, key=lambda threshold: _errors(scores, included, choosing, threshold, confidence).mu)
    return float(best), _errors(scores, included, ~choosing, best, confidence)


def _errors(
    scores: Scores, included: NDArray[np.bool_], part: NDArray[np.bool_], threshold: float, confidence: float
) -> ErrorRates:
    guessed = scores > threshold
    absent, present = part & ~included, part & included
    return ErrorRates(
        false_positives=int((guessed & absent).sum()),
        absent=int(absent.sum()),
        false_negatives=int((~guessed & present).sum()),
        present=int(present.sum()),
        confidence=confidence,
    )


def correct_guesses(scores: Scores, included: NDArray[np.bool_], guesses: int) -> int:
    """Guess that the highest scores are members and the lowest are not, half and half; count what is right."""
    ranked = included[np.argsort(scores, kind="stable")]
    lowest = guesses // 2
    return int((~ranked[:lowest]).sum() + ranked[len(ranked) - (guesses - lowest) :].sum())
