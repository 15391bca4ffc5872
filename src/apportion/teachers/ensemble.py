"""How teachers, groups and votes are arranged. All of it is public and fixed before a record is read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.budget import Budget, Group

Floats = NDArray[np.float64]
EVERYBODY = "everybody"
"""The group of a budget without groups."""


@dataclass(frozen=True)
class Ensemble:
    """Who teaches whom, and whose vote counts how much in which query.

    An *account* belongs to the records that pay the same for every query: to those of one teacher if no record has two teachers,
    otherwise to those of one group.

    Args:
        groups: with their budgets.
        seats: for each group the teachers that may hold its records.
        copies: for each group in how many different ones of them a record is.
        weights: for each teacher what its vote counts.
        rates: for each teacher the share of the queries in which it votes.
        offsets: for each teacher where in its turn it begins, in [0, 1).
        scale: expected votes over the number of teachers that was asked for; σ, σ₁ and the threshold are multiplied by it.
    """

    groups: tuple[Group, ...]
    seats: tuple[tuple[int, ...], ...]
    copies: tuple[int, ...]
    weights: tuple[float, ...]
    rates: tuple[float, ...]
    offsets: tuple[float, ...]
    scale: float = 1.0

    @property
    def teachers(self) -> int:
        return len(self.weights)

    def votes(self, query: int) -> Floats:
        """What each teacher's vote counts in a query; 0 if it takes no part. Teacher t takes part iff ⌊(i+1)·r_t + o_t⌋ > ⌊i·r_t + o_t⌋."""
        weights, rates, offsets = self._arrays
        part = np.floor((query + 1) * rates + offsets) > np.floor(query * rates + offsets)
        return np.where(part, weights, 0.0)

    @cached_property
    def _arrays(self) -> tuple[Floats, Floats, Floats]:
        return np.array(self.weights), np.array(self.rates), np.array(self.offsets)

    @property
    def disjoint(self) -> bool:
        """Whether every record has one teacher."""
        return max(self.copies) == 1

    def accounts_of(self, group: int) -> tuple[int, ...]:
        """The accounts of which one is that of a record of this group."""
        return self.seats[group] if self.disjoint else (group,)

    def sensitivities(self, query: int) -> Floats:
        """s of each account: how many votes one of its records can move.

        A record in one teacher moves that teacher's vote. A record in u teachers, whose votes count 1 each, moves u.
        """
        return self.votes(query) if self.disjoint else np.array(self.copies, dtype=float)

    def budgets(self) -> Floats:
        """ε of each account; the smallest, where records of several budgets share one."""
        if not self.disjoint:
            return np.array([group.epsilon for group in self.groups])
        found = np.full(self.teachers, math.inf)
        for group, seats in zip(self.groups, self.seats, strict=True):
            found[list(seats)] = np.minimum(found[list(seats)], group.epsilon)
        return found

    def describe(self) -> dict[str, Any]:
        """As data, for the statement: of each group its teachers, its copies, its largest weight and its share of the queries."""
        return {
            "teachers": self.teachers,
            "scale": self.scale,
            "groups": [
                {"name": group.name, "teachers": len(seats), "copies": copies}
                | {"weight": self.weights[seats[0]], "share_of_queries": self.rates[seats[0]]}
                for group, seats, copies in zip(self.groups, self.seats, self.copies, strict=True)
            ],
        }


def groups_of(budget: Budget) -> tuple[Group, ...]:
    """The groups of a budget; one of everybody if it has none."""
    return budget.groups or (Group(EVERYBODY, budget.epsilon, 1.0),)


def divide_seats(teachers: int, shares: Sequence[float]) -> list[int]:
    """`teachers` divided in proportion to `shares`, by largest remainders, at least one for each. They add up to `teachers`."""
    wanted = np.array(shares) * teachers / math.fsum(shares)
    seats = np.maximum(1, np.floor(wanted + 1e-9)).astype(int)
    while seats.sum() < teachers:
        seats[np.argmax(wanted - seats)] += 1
    while seats.sum() > teachers:  # where some have their one seat for less than one
        seats[np.argmax(np.where(seats > 1, seats - wanted, -math.inf))] -= 1
    return [int(count) for count in seats]
