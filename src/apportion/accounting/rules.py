"""When z, q or the number of steps follow released values: the rules that make that valid.

Thresholds, learning rates and queries may follow released values under any rule, because the price of a step depends on (q, z) only.
Choosing (q, z) itself, or whether to go on, from what was released needs one of these. Summing up the privacy loss of the path that
happened to be taken is *not* a guarantee: a controller that switches after 2,500 steps between 2,500 more at z = 1.2 and 25 at
z = 0.682 stays at ε = 1.181 on either path, and its true ε is 1.2525.

| rule               | declared in advance             | chosen on the way             | price                                  |
|--------------------|---------------------------------|-------------------------------|----------------------------------------|
| plan (`Account`)   | every (q_t, z_t), in order      | nothing                       | PLD of the plan                        |
| `Multiset`         | how often each (q, z) may occur | the order, and when to stop   | PLD of the whole multiset              |
| `RenyiFilter`      | (ε, δ), orders and weights      | any (q, z), any number        | (ε, δ); 8 to 36 % more than PLD        |
| `GaussianFilter`   | (ε, δ)                          | any z at q = 1, any number    | (ε, δ), tight                          |
| `ConcentratedFilter` | (ε, δ)                        | any z at q = 1, any number    | (ε, δ) by zCDP                         |

Under every rule, what prices a batch is fixed before its coins are tossed. That is structural: a `Request` holds one multiplier for all
that is released on its batch, and a drawn batch cannot be asked again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from apportion import validate
from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.accounting.gaussian import gaussian_mu
from apportion.accounting.renyi import ORDERS, renyi_curve, renyi_sum
from apportion.budget import Budget, require_budget
from apportion.errors import BudgetExhausted, InvalidArgument
from apportion.request import Event


class Rule(Protocol):
    """Decides, event by event, whether it is covered by the budget that was declared."""

    name: str

    def charge(self, event: Event) -> None:
        """Count `event`, or raise `BudgetExhausted` and change nothing."""
        ...


class Multiset:
    """Declared tokens (q, z), spent in any order that released values suggest, each once or never.

    *Why it is valid.* By induction on the number of tokens: the first one is chosen before anything was released; whatever its answer,
    the rest costs at most H(S∖t); so the whole costs at most H(t × S∖t) = H(S), which is the same for every choice of t; and not
    spending tokens costs less. A token may be spent on an event that it covers (rate no larger and multiplier no smaller).
    """

    name = "multiset of declared tokens, in any order"

    def __init__(self, tokens: Mapping[Event, int], budget: Budget):
        require_budget("budget", budget)
        for token, count in tokens.items():
            validate.whole("tokens", count, f"it is how often {token} may be spent", "Use whole numbers", least=0)
        self._left = Counter(tokens)
        self.epsilon = PrivacyLossAccountant().epsilon(tokens, budget.delta)
        if self.epsilon > budget.epsilon:
            raise InvalidArgument(
                "tokens",
                f"{sum(tokens.values())} tokens",
                f"together they cost {self.epsilon:.4g}, more than epsilon={budget.epsilon:g}",
                "Declare fewer tokens, or more noise",
            )

    @property
    def left(self) -> Mapping[Event, int]:
        """The tokens that can still be spent."""
        return +self._left

    def charge(self, event: Event) -> None:
        covering = [token for token in self.left if token.covers(event)]
        if not covering:
            raise BudgetExhausted(
                f"no unspent token covers sample_rate={event.sample_rate:g}, noise_multiplier={event.noise_multiplier:.6g}; left are "
                f"{ {(token.sample_rate, token.noise_multiplier): n for token, n in self.left.items()} }"
            )
        # The cheapest one that will do, so that stronger tokens are kept.
        self._left[min(covering, key=lambda token: (token.sample_rate, -token.noise_multiplier))] -= 1


class RenyiFilter:
    """Any (q, z), any number of steps, as long as one declared Rényi order stays within its part of the budget.

    Order α has the weight w_α of δ and the allowance B_α = ε − ln((α−1)/α) + (ln(w_α·δ) + ln α)/(α−1). Before each release the orders
    with A(α) + r(α) > B_α die, where A is what was spent and r the event's divergence; if none would be left, the event is refused.

    *Why it is valid.* exp((α−1)(L − A(α))) is a supermartingale for the privacy loss L, so stopping at the death of order α gives
    E e^{(α−1)L^α} ≤ e^{(α−1)B_α}, hence the part of δ that order α fails is at most w_α·δ. An order that is alive at the end was alive
    throughout, so (1 − e^{ε−L})₊ ≤ Σ_α (1 − e^{ε−L^α})₊, and the weights add up to 1. (Feldman and Zrnic 2021 for one order.)
    """

    name = "weighted Rényi filter"

    def __init__(self, budget: Budget, weights: Mapping[float, float]):
        require_budget("budget", budget)
        if not isinstance(weights, Mapping):
            raise InvalidArgument(
                "weights", validate.shown(weights), "it is not a mapping of orders to weights", "Try {14.0: 1.0}"
            )
        why = "a part of delta belongs to each order"
        parts = {
            validate.positive("weights, order", order, "it is a Rényi order", "Try the order 14"): validate.probability(
                "weights", weight, why, "Divide each by their sum"
            )
            for order, weight in weights.items()
        }
        if not math.isclose(math.fsum(parts.values()), 1.0, rel_tol=1e-9):
            raise InvalidArgument("weights", parts, "they must be positive and add up to 1", "Divide each by their sum")
        if min(parts) <= 1:
            raise InvalidArgument("weights", min(parts), "Rényi orders are larger than 1", "Try the order 14")
        self._orders = tuple(parts)
        orders, shares = np.array(self._orders), np.array(list(parts.values()))
        self._allowed = (
            budget.epsilon
            - np.log((orders - 1) / orders)
            + (np.log(shares * budget.delta) + np.log(orders)) / (orders - 1)
        )
        self._alive = self._allowed >= 0
        self._spent = np.zeros(len(orders))

    @classmethod
    def around(cls, budget: Budget, reference: Mapping[Event, int]) -> RenyiFilter:
        """Weights for runs like `reference`: 0.8 on its best order, the rest on the eight orders around that."""
        orders = np.array(ORDERS)
        prices = (
            renyi_sum(reference)
            + np.log((orders - 1) / orders)
            - (math.log(budget.delta) + np.log(orders)) / (orders - 1)
        )
        best = int(np.nanargmin(np.where(np.isfinite(prices), prices, np.inf)))
        start = min(max(best - 4, 0), len(orders) - 9)
        near = [index for index in range(start, start + 9) if index != best]
        return cls(budget, {ORDERS[best]: 0.8} | {ORDERS[index]: 0.2 / len(near) for index in near})

    def charge(self, event: Event) -> None:
        spent = self._spent + renyi_curve(event, self._orders)
        alive = self._alive & (spent <= self._allowed)
        if not alive.any():
            raise BudgetExhausted(
                f"sample_rate={event.sample_rate:g}, noise_multiplier={event.noise_multiplier:.6g} does not fit: no Rényi order would "
                "stay within its allowance. Stop here, or ask for more noise."
            )
        self._spent, self._alive = spent, alive


class _UnsampledFilter:
    """Adds up one number for each Gaussian on all records, up to a total."""

    def __init__(self, total: float):
        self._left = total

    def spend(self, event: Event, cost: float, name: str) -> None:
        if event.sample_rate != 1:
            raise InvalidArgument(
                "sample_rate",
                event.sample_rate,
                f"the {name} holds without sampling only",
                "Use q = 1, or the Rényi filter",
            )
        if cost > self._left:
            raise BudgetExhausted(
                f"noise_multiplier={event.noise_multiplier:.6g} needs {cost:.4g} of the {name}, {self._left:.4g} is left. "
                "Stop here, or ask for more noise."
            )
        self._left -= cost


class GaussianFilter:
    """Any multipliers at q = 1 while Σ 1/z_t² ≤ μ², the largest μ that is (ε, δ)-DP. (Smith and Thakurta 2022; Koskela et al. 2023.)"""

    name = "Gaussian filter"

    def __init__(self, budget: Budget):
        require_budget("budget", budget)
        self._filter = _UnsampledFilter(gaussian_mu(budget.epsilon, budget.delta) ** 2)

    def charge(self, event: Event) -> None:
        self._filter.spend(event, event.noise_multiplier**-2, self.name)


class ConcentratedFilter:
    """Any multipliers at q = 1 while Σ 1/(2z_t²) ≤ ρ, ρ = (√(ln(1/δ) + ε) − √ln(1/δ))². (Whitehouse et al. 2023.)"""

    name = "zCDP filter"

    def __init__(self, budget: Budget):
        tail = -math.log(require_budget("budget", budget).delta)
        self._filter = _UnsampledFilter((math.sqrt(tail + budget.epsilon) - math.sqrt(tail)) ** 2)

    def charge(self, event: Event) -> None:
        self._filter.spend(event, event.noise_multiplier**-2 / 2, self.name)


RULES: Sequence[str] = (
    "a plan fixed in advance",
    Multiset.name,
    RenyiFilter.name,
    GaussianFilter.name,
    ConcentratedFilter.name,
)
