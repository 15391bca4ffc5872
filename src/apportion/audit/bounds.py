"""From right and wrong guesses about canaries to a lower bound on ε. Pure arithmetic, no torch.

An auditor decides by coin which canaries are in the data, looks at what was released and guesses. Differential privacy limits how
often such guesses can be right; guesses that are right too often refute the claimed ε with a stated confidence. A lower bound below
the claim proves nothing: another attack may be better.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import beta, binom

from apportion.accounting.gaussian import gaussian_epsilon

_LARGEST = 50.0  # e^−50: more than any number of guesses can tell


@dataclass(frozen=True)
class ErrorRates:
    """The two errors of one test "is this canary in the data?", counted on canaries that had no part in choosing its threshold.

    Args:
        false_positives, absent: canaries that were guessed to be members but are not, of so many non-members.
        false_negatives, present: canaries that were guessed to be absent but are members, of so many members.
        confidence: with this probability both upper bounds hold together; each may fail with half of the rest.
    """

    false_positives: int
    absent: int
    false_negatives: int
    present: int
    confidence: float

    @property
    def false_positive_bound(self) -> float:
        """a ≥ FPR, by Clopper and Pearson."""
        return upper_bound(self.false_positives, self.absent, (1 - self.confidence) / 2)

    @property
    def false_negative_bound(self) -> float:
        """b ≥ FNR, by Clopper and Pearson."""
        return upper_bound(self.false_negatives, self.present, (1 - self.confidence) / 2)

    @property
    def mu(self) -> float:
        """μ = Φ⁻¹(1 − a) − Φ⁻¹(b), at least 0: the weakest Gaussian pair N(μ, 1), N(0, 1) that allows these errors.

        Source: Nasr et al., Tight Auditing of Differentially Private Machine Learning, 2023.
        Guarantee: a lower bound at `confidence` if the run is a Gaussian mechanism, that is for sampling rate 1. With sampling the
        trade-off between the errors has another shape, and μ is a heuristic; `trade_off` needs no shape.
        """
        return max(0.0, -float(ndtri(self.false_positive_bound)) - float(ndtri(self.false_negative_bound)))

    def epsilon(self, delta: float) -> float:
        """ε at `delta` of the Gaussian pair with `mu`. Exact and heuristic where `mu` is."""
        return gaussian_epsilon(self.mu, delta)


def upper_bound(errors: int, trials: int, failure: float) -> float:
    """The Clopper-Pearson upper bound on a rate of which `errors` of `trials` were seen; too small with probability ≤ `failure`."""
    if errors >= trials:
        return 1.0
    return float(beta.ppf(1 - failure, errors + 1, trials - errors))


def trade_off(profile: Callable[[float], float], largest: float, points: int = 400) -> Callable[[float], float]:
    """f(a): the smallest FNR that a run with privacy profile δ(ε) leaves to any test with FPR ≤ a.

    f(a) = max over ε ≥ 0 of 1 − δ(ε) − e^ε·a, e^−ε·(1 − δ(ε) − a) and 0. The alarm is b < f(a) for the bounds a and b of
    `ErrorRates`: if the claim holds, b ≥ FNR ≥ f(FPR) ≥ f(a) whenever both bounds hold, whatever the sampling rate. So a correct
    library raises it with probability at most 1 − confidence.

    Args:
        profile: δ(ε) for adding and removing a record, an upper bound.
        largest, points: f is taken over so many ε from 0 to `largest`. Fewer make f smaller, never too large.

    Source: Dong, Roth, Su, Gaussian Differential Privacy, 2019.
    """
    epsilons: NDArray[np.float64] = np.linspace(0.0, largest, points)
    kept = 1 - np.array([profile(float(epsilon)) for epsilon in epsilons])
    growth = np.exp(epsilons)

    def least_false_negatives(false_positives: float) -> float:
        return max(
            0.0, float(np.max(kept - growth * false_positives)), float(np.max((kept - false_positives) / growth))
        )

    return least_false_negatives


def one_run_epsilon(*, canaries: int, guesses: int, correct: int, delta: float, confidence: float) -> float:
    """The largest ε that `correct` of `guesses` right guesses in a single run refute.

    For an (ε, δ)-DP run with m canaries, each present with probability ½, and W right among r guesses,
    P[W ≥ v] ≤ f(v) + 2mδ·max_i (f(v − i) − f(v))/i, with f(v) = P[Bin(r, e^ε/(1 + e^ε)) ≥ v].

    Args:
        canaries: m.
        guesses: r, fixed before anything was released. About the other m − r canaries the auditor says nothing.
        correct: v.
        delta: δ.
        confidence: ε is refuted if the right side is below 1 − `confidence`.

    Source: Steinke, Nasr, Jagielski, Privacy Auditing with One (1) Training Run, 2023.
    Guarantee: a lower bound at `confidence` for any mechanism; no shape is assumed, nor that canaries do not disturb each other.
    """

    def refuted(epsilon: float) -> bool:
        at_least = binom.sf(np.arange(-1, correct), guesses, 1 / (1 + math.exp(-epsilon)))  # f(0), ..., f(v)
        fewer = np.arange(1, correct + 1)
        slopes = (at_least[correct - fewer] - at_least[correct]) / fewer
        bound = at_least[correct] + 2 * canaries * delta * float(slopes.max(initial=0.0))
        return bool(bound < 1 - confidence)

    low, high = 0.0, _LARGEST
    if not refuted(low):
        return 0.0
    while high - low > 1e-9:  # `low` is always refuted, and with it every smaller ε
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
