"""What a query releases, and how much noise it needs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from apportion.accounting.gaussian import gaussian_mu
from apportion.errors import InvalidArgument
from apportion.teachers.ensemble import Ensemble
from apportion.validate import Checked, checked, non_negative, positive, whole

CHECK_RATIO = 2.0
"""σ₁/σ, where nothing else was said."""
AGREEMENT = 0.6
"""The threshold over the number of teachers, where nothing else was said."""
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class Mechanism:
    """What is executed, in votes: noise of an answer, noise of a check and its threshold (`None`: every query is answered)."""

    sigma: float
    check_sigma: float | None = None
    threshold: float | None = None

    def describe(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class GNMax(Checked):
    """Answer argmax_j (n_j + N(0, σ²)), n_j the votes for class j. (Papernot et al. 2018.)

    A record that moves s votes moves the histogram by at most √2·s in the Euclidean norm (s less for one class, s more for another), so an
    answer is a Gaussian mechanism with μ = √2·s/σ.

    Args:
        sigma: σ, for as many votes as teachers were asked for; a variant with more or fewer votes scales it. By default as small as lets
            every query be answered within all budgets.

    Examples:
        >>> import apportion as ap
        >>> ap.teachers.GNMax(sigma=20)
        GNMax(sigma=20.0)
    """

    prefix = "aggregation"
    sigma: float | None = checked(None, positive, "without noise an answer is an un-noised read of the votes")

    def mechanism(self, ensemble: Ensemble, delta: float, queries: int, teachers: int) -> Mechanism:
        """The noise that is executed."""
        if self.sigma is not None:
            return Mechanism(self.sigma * ensemble.scale)
        return Mechanism(math.sqrt(2 * _load(ensemble, delta, queries)) * _ROUNDING)


@dataclass(frozen=True)
class ConfidentGNMax(Checked):
    """Answer as `GNMax`, but only if max_j n_j + N(0, σ₁²) ≥ T: where teachers disagree, an answer would be wrong and as dear as any.

    The largest count moves by at most s, so the check is a Gaussian mechanism with μ = s/σ₁. It is charged for every query, also for those
    that are not answered.

    Args:
        sigma: σ of an answer. By default as small as lets all checks and the planned answers fit.
        check_sigma: σ₁ of a check; by default twice σ.
        threshold: T, in votes, at most the number of teachers; by default 0.6 of it.
        answers: how many answers are planned, for the default of `sigma`; by default one for each query. The filter stops when a budget is
            used up, however many there were.

    Examples:
        >>> import apportion as ap
        >>> ap.teachers.ConfidentGNMax(sigma=40, check_sigma=150, threshold=200)
        ConfidentGNMax(sigma=40.0, check_sigma=150.0, threshold=200.0, answers=None)
    """

    prefix = "aggregation"
    sigma: float | None = checked(None, positive, "without noise an answer is an un-noised read of the votes")
    check_sigma: float | None = checked(None, positive, "without noise a check is an un-noised read of the votes")
    threshold: float | None = checked(None, non_negative, "it is a number of votes")
    answers: int | None = checked(None, whole, "it is a number of queries")

    def mechanism(self, ensemble: Ensemble, delta: float, queries: int, teachers: int) -> Mechanism:
        """The noise and the threshold that are executed."""
        threshold = AGREEMENT * teachers if self.threshold is None else self.threshold
        if threshold > teachers:
            reason = f"no class can have more votes than there are teachers, {teachers}"
            raise InvalidArgument("aggregation.threshold", threshold, reason, f"Try {AGREEMENT * teachers:g}")
        scale, planned = ensemble.scale, min(self.answers or queries, queries) / queries
        check = None if self.check_sigma is None else self.check_sigma * scale
        sigma = None if self.sigma is None else self.sigma * scale
        if sigma is None:
            load = _load(ensemble, delta, queries)
            left = 1.0 if check is None else 1.0 - load / check**2
            if left <= 0:
                reason = f"{queries} checks with so little noise cost more than a budget"
                fix = f"Use at least {1.5 * math.sqrt(load) / scale:.3g}, or fewer queries"
                raise InvalidArgument("aggregation.check_sigma", self.check_sigma, reason, fix)
            shares = 2 * planned + (CHECK_RATIO**-2 if check is None else 0.0)
            sigma = math.sqrt(load * shares / left) * _ROUNDING
        return Mechanism(sigma, CHECK_RATIO * sigma if check is None else check, threshold * scale)


Aggregation = GNMax | ConfidentGNMax


def _load(ensemble: Ensemble, delta: float, queries: int) -> float:
    """max over the accounts of Σ_i s_i²/μ²: what all queries need of a budget, for noise of 1."""
    needed = np.sum([ensemble.sensitivities(query) ** 2 for query in range(queries)], axis=0)
    allowed = [gaussian_mu(epsilon, delta) ** 2 for epsilon in ensemble.budgets()]
    return float(np.max(needed / allowed))
