"""What the queries really cost, given these votes (Papernot et al. 2018, theorem 6 and proposition 10). A secret: it depends on the
records.

Where teachers agree, the noisy winner is nearly certain to be the true one, whoever is added or removed, and the answer costs far less
than its data-independent price. But the amount itself tells how well they agreed. So it is kept for whoever guards the data and never
published.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfc

from apportion.accounting.renyi import ORDERS
from apportion.teachers.aggregation import Mechanism
from apportion.teachers.ensemble import Ensemble, Floats

LABEL = "NOT PUBLISHABLE: this depends on the votes, and so on the private records. What may be published is the data-independent ε."
_ALPHA = np.array(ORDERS)


def answer_curve(counts: Floats, sigma: float, sensitivity: float, orders: NDArray[np.float64] = _ALPHA) -> Floats:
    """ε(α) of one GNMax answer for a record that moves `sensitivity` votes, never above the data-independent α·s²/σ².

    With q̃ ≥ P(answer ≠ j*) = Σ_{j≠j*} ½·erfc((n_{j*}−n_j)/(2σ)), σ in units of s, a₂ = σ·√ln(1/q̃), a₁ = a₂+1, e_i = a_i/σ²:
    ε(α) = ln[(1−q̃)·A^{α−1} + q̃·B^{α−1}]/(α−1), A = (1−q̃)/(1−(q̃·e^{e₂})^{1−1/a₂}), B = e^{e₁}·q̃^{−1/(a₁−1)}, for α < a₁, a₂ > 1,
    ln q̃ ≤ (a₂−1)·e₂ − a₂·[ln(1+1/(a₁−1)) + ln(1+1/(a₂−1))] and −ln q̃ > e₂.
    """
    if sensitivity == 0:
        return np.zeros(len(orders))
    noise = sigma / sensitivity
    independent = orders / noise**2
    gaps = np.delete(counts.max() - counts, int(np.argmax(counts)))
    chance = min(float(0.5 * erfc(gaps / (2 * sigma)).sum()), 1 - 1 / len(counts))
    if not 0 < chance < 1:
        return np.zeros(len(orders)) if chance <= 0 else independent
    log_chance = math.log(chance)
    second = noise * math.sqrt(-log_chance)
    first = second + 1
    cost_first, cost_second = first / noise**2, second / noise**2
    if second <= 1 or -log_chance <= cost_second:
        return independent
    limit = (second - 1) * cost_second - second * (math.log1p(1 / (first - 1)) + math.log1p(1 / (second - 1)))
    if log_chance > limit:
        return independent
    log_a = math.log1p(-chance) - math.log1p(-math.exp((log_chance + cost_second) * (1 - 1 / second)))
    log_b = cost_first - log_chance / (first - 1)
    dependent = np.logaddexp(math.log1p(-chance) + (orders - 1) * log_a, log_chance + (orders - 1) * log_b) / (
        orders - 1
    )
    return np.where(orders < first, np.minimum(dependent, independent), independent)


class DataDependentCost:
    """Adds up the Rényi curves of each account."""

    def __init__(self, ensemble: Ensemble, mechanism: Mechanism):
        self._ensemble, self._mechanism = ensemble, mechanism
        self._curves = np.zeros((len(ensemble.budgets()), len(_ALPHA)))

    def add_check(self, query: int) -> None:
        """α·s²/(2σ₁²): the data-independent price."""
        assert self._mechanism.check_sigma is not None
        sensitivities = self._ensemble.sensitivities(query)
        self._curves += np.outer((sensitivities / self._mechanism.check_sigma) ** 2 / 2, _ALPHA)

    def add_answer(self, query: int, counts: Floats) -> None:
        sensitivities = self._ensemble.sensitivities(query)
        for one in np.unique(sensitivities):
            self._curves[sensitivities == one] += answer_curve(counts, self._mechanism.sigma, float(one))

    def describe(self, delta: float, independent: Sequence[float]) -> dict[str, Any]:
        """ε of each group at `delta`, with a label that says what it is.

        Args:
            independent: the data-independent ε of each group, converted exactly, which a Rényi curve cannot be.
        """
        paid = np.log1p(-1 / _ALPHA) - (math.log(delta) + np.log(_ALPHA)) / (_ALPHA - 1)
        epsilons = np.maximum(0.0, (self._curves + paid).min(axis=1))
        return {
            "label": LABEL,
            "delta": delta,
            "groups": [
                {"name": group.name, "data_dependent_epsilon": min(float(epsilons[list(accounts)].max()), known)}
                for group, accounts, known in zip(
                    self._ensemble.groups,
                    map(self._ensemble.accounts_of, range(len(independent))),
                    independent,
                    strict=True,
                )
            ],
        }
