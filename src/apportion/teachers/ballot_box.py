"""The votes, and the only way out for them: charge, toss, answer. What is here never leaves but through `ask`."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from apportion.accounting.account import Account
from apportion.curator.randomness import Randomness
from apportion.errors import BudgetExhausted
from apportion.teachers.aggregation import Mechanism
from apportion.teachers.data_dependent import DataDependentCost
from apportion.teachers.ensemble import Ensemble, Floats
from apportion.teachers.group_filter import GroupFilter, query_of
from apportion.teachers.teaching import Classes


class BallotBox:
    """Answers queries, each charged, durably, before its noise is drawn.

    Args:
        votes: the class that each teacher votes for in each query.
        classes: their number.
        ensemble: what the votes count.
        mechanism: the noise.
        account: pays for the queries under a `GroupFilter`.
        randomness: the noise comes from its streams, a new one for each release.
    """

    def __init__(
        self,
        votes: Classes,
        classes: int,
        ensemble: Ensemble,
        mechanism: Mechanism,
        account: Account,
        randomness: Randomness,
    ):
        self._votes, self._classes, self._ensemble = votes, classes, ensemble
        self._mechanism, self._account, self._randomness = mechanism, account, randomness
        self.secret_cost = DataDependentCost(ensemble, mechanism)
        """For whoever guards the data alone: it depends on the votes."""

    def count(self, query: int) -> Floats:
        """Σ of the weights of the teachers that vote for each class. Secret."""
        counts: Floats = np.zeros(self._classes)
        np.add.at(counts, self._votes[:, query], self._ensemble.votes(query))
        return counts

    def ask(self, query: int) -> int | None:
        """The noisy winner; `None` if the teachers do not agree enough. What does not fit raises `BudgetExhausted`, uncharged."""
        check, threshold = self._mechanism.check_sigma, self._mechanism.threshold
        if check is not None and threshold is not None:
            self._charge(2 * query + 1)
            largest = self.count(query).max() + check * self._randomness.next_draw().noise.normals(1)[0]
            self.secret_cost.add_check(query)
            if largest < threshold:
                return None
        self._charge(2 * query + 2)
        noise = self._mechanism.sigma * self._randomness.next_draw().noise.normals(self._classes)
        counts = self.count(query)
        self.secret_cost.add_answer(query, counts)
        return int(np.argmax(counts + noise))

    def recall(self, tokens: Iterable[int]) -> None:
        """Count the secret cost of queries that were charged before a crash."""
        for token in (one for one in tokens if self._account.is_spent(one)):
            if token % 2:
                self.secret_cost.add_check(query_of(token))
            else:
                self.secret_cost.add_answer(query_of(token), self.count(query_of(token)))

    def _charge(self, token: int) -> None:
        rule = self._account.rule
        if not isinstance(rule, GroupFilter):
            raise BudgetExhausted("votes are paid for under a filter for each group")
        self._account.charge_token(token, rule.event(token))
