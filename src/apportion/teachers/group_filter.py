"""The rule of a PATE run: one Gaussian filter for each account, and nothing is asked that would exceed any of them.

For data sets that differ in a record of group p, every check is dominated by a Gaussian with μ = s/σ₁ and every answer by one with μ =
√2·s/σ, where s is how many votes the record can move in that query: a public number. Which query comes next, whether it is answered after
its check, and when to stop, may follow what was released. So for each group it is an adaptive sequence of Gaussians, and Σμ² ≤ μ_p² makes
it (ε_p, δ)-DP (the Gaussian filter). The rule refuses a query for everybody as soon as it does not fit in one account; that decision,
too, is made of public numbers and what was released.

Tokens are numbered: 2i−1 is the check and 2i the answer of query i. So a ledger says what each charge was for, and no query is answered
twice.
"""

from __future__ import annotations

import math

import numpy as np

from apportion.accounting.gaussian import gaussian_epsilon, gaussian_mu
from apportion.budget import Budget
from apportion.errors import BudgetExhausted, InvalidArgument
from apportion.event import Event
from apportion.teachers.aggregation import Mechanism
from apportion.teachers.ensemble import Ensemble, Floats


class GroupFilter:
    """Σ_i s_i²·(1/σ₁² + 2/σ²) ≤ μ_p² for every account, with μ_p the largest that is (ε_p, δ)-DP.

    Args:
        budget: with its groups.
        ensemble: says how many votes a record of each account can move.
        mechanism: the noise.
        queries: how many there are at most.
    """

    name = "Gaussian filter for each group"
    validity = (
        "filter: what each query costs each group was fixed before its coins were tossed, and a query that would have exceeded "
        "the budget of any group, by what had been spent before it, was not asked"
    )
    adaptive = True
    declared: tuple[Event, ...] = ()

    def __init__(self, budget: Budget, ensemble: Ensemble, mechanism: Mechanism, queries: int):
        self._budget, self._ensemble, self._mechanism = budget, ensemble, mechanism
        self.steps = 2 * queries
        self._allowed = np.array([gaussian_mu(epsilon, budget.delta) ** 2 for epsilon in ensemble.budgets()])
        self.reset()

    @property
    def terms(self) -> str:
        """All that prices a query."""
        groups = ", ".join(f"{group.name!r}: {group.epsilon!r}" for group in self._ensemble.groups)
        declared = f"delta={self._budget.delta!r}, epsilon={{{groups}}}, queries={self.steps // 2}"
        return f"{self.name}, {declared}, {self._mechanism!r}, {self._ensemble.describe()!r}"

    def reset(self) -> None:
        self._spent = np.zeros(len(self._allowed))
        self.last = 0
        """The token that was charged last."""

    def affords(self, step: int) -> bool:
        return True

    def event(self, token: int) -> Event:
        """What a token pays for, as seen by those who can move the most votes: whoever reads the ledger so is safe for everybody."""
        largest = float(self._ensemble.sensitivities(query_of(token)).max())
        return Event(1.0, math.sqrt(1 / self._price(token)) / largest)

    def _price(self, token: int) -> float:
        """μ² for a record that moves one vote."""
        if token % 2:
            if self._mechanism.check_sigma is None:
                raise BudgetExhausted("no check was declared")
            return self._mechanism.check_sigma**-2
        return 2 * self._mechanism.sigma**-2

    def cost(self, token: int) -> Floats:
        """μ² for each account."""
        return self._ensemble.sensitivities(query_of(token)) ** 2 * self._price(token)

    def find_token(self, step: int, event: Event) -> int | None:
        """The next token; with a check, whether an answer comes next is not for the rule to say."""
        return self.last + 1 if self._mechanism.check_sigma is not None else self.last + 2

    def require(self, token: int, step: int, event: Event) -> None:
        """A check is covered only if its answer would fit as well."""
        if not self.last < token <= self.steps or event != self.event(token):
            raise BudgetExhausted(
                f"token {token} is spent, was never declared, or pays for something else than {event}"
            )
        after = self._spent + self.cost(token)
        if token % 2:
            after = after + self.cost(token + 1)
        elif self._mechanism.check_sigma is not None and self.last != token - 1:
            raise BudgetExhausted(f"the answer of token {token} needs its check first")
        if (after > self._allowed).any():
            raise BudgetExhausted(
                "another query would exceed the budget of a group. The labels so far are the student's."
            )

    def following(self, token: int, most: int) -> list[int]:
        return []

    def spend(self, token: int, event: Event) -> None:
        self._spent = self._spent + self.cost(token)
        self.last = token

    def epsilon(self, delta: float, group: int | None = None) -> float:
        """The budget of a group, or the largest of all, at any δ that is no smaller than the declared one."""
        if delta < self._budget.delta:
            reason = f"the filter guarantees its budgets at δ = {self._budget.delta:g} and larger ones only"
            raise InvalidArgument("delta", delta, reason, "Leave it out")
        return self._budget.epsilon if group is None else self._ensemble.groups[group].epsilon

    def spent_epsilon(self, group: int) -> float:
        """ε of what was charged to the group so far, never above its budget: δ(ε) = Φ(−ε/μ+μ/2) − e^ε·Φ(−ε/μ−μ/2) for μ² = Σμ_i²."""
        mu = math.sqrt(max(self._spent[list(self._ensemble.accounts_of(group))]))
        spent = gaussian_epsilon(mu, self._budget.delta) if mu else 0.0
        return min(spent, self._ensemble.groups[group].epsilon)


def query_of(token: int) -> int:
    """The number of the query, from 0, that a token pays for."""
    return (token - 1) // 2
