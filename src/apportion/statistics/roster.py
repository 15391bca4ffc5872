"""Who asked for which ε: levels in ascending order, their shares, and the level of each record. All of it is public.

A **roster** is a public list of people with a budget each. A data set holds a value for some of them (NaN stands for nobody's value), and
two data sets are neighbours if one person's value is in one of them and missing in the other. What a mechanism chooses (thresholds, bins,
rates) follows the levels and shares only, never the values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.budget import Budget
from apportion.errors import InvalidArgument

EVERYBODY = "everybody"
NOBODY = -1
"""The level of a record whose ε is below the smallest of the declared groups: it takes no part and pays nothing."""
MOST_LEVELS = 64
"""Of an ε for each record; more of them are rounded down to a grid of so many."""


@dataclass(frozen=True, eq=False)
class Roster:
    """Public budgets.

    Args:
        names: of the levels, ε ascending.
        epsilons: ε_p of each level.
        shares: r_p: declared with the groups, or counted in the list of budgets.
        level: of each record.
    """

    names: tuple[str, ...]
    epsilons: tuple[float, ...]
    shares: tuple[float, ...]
    level: NDArray[np.int64]

    @property
    def largest(self) -> float:
        return self.epsilons[-1]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many of the list have each level."""
        return np.bincount(self.level[self.level != NOBODY], minlength=len(self.epsilons))


def read_roster(budget: Budget, records: int, labels: Any | None, epsilons: Any | None) -> Roster:
    """One ε for all, one for the group of each record's label (by name or number), or one for each record."""
    if labels is not None and epsilons is not None:
        raise InvalidArgument("labels", "both", "epsilons were given too", "Pass the one or the other")
    if labels is not None:
        return _of_labels(budget, records, labels)
    if epsilons is not None:
        return _of_records(budget, _read_epsilons(budget, records, epsilons))
    if budget.groups:
        names = [group.name for group in budget.groups]
        raise InvalidArgument("labels", None, f"the budget has the groups {names}", "Pass the group of each record")
    return Roster((EVERYBODY,), (budget.epsilon,), (1.0,), np.zeros(records, dtype=np.int64))


def _of_labels(budget: Budget, records: int, labels: Any) -> Roster:
    groups = sorted(budget.groups, key=lambda group: group.epsilon)
    if not groups:
        raise InvalidArgument("budget", budget, "it has no groups for the labels", "Use apportion.Budget.of_groups")
    if isinstance(labels, str) or not hasattr(labels, "__len__"):
        reason = "a column has no inputs to find them in"
        raise InvalidArgument("labels", type(labels).__name__, reason, "Pass the group of each record")
    _require_length("labels", len(labels), records)
    places: dict[Any, int] = {group.name: place for place, group in enumerate(groups)}
    places |= {number: groups.index(group) for number, group in enumerate(budget.groups)}
    found = [places.get(label, NOBODY) for label in np.asarray(labels).tolist()]
    if NOBODY in found:  # labels are public, and without a budget nothing is promised
        fix = f"Use the names {[group.name for group in groups]}, or their numbers"
        raise InvalidArgument("labels", "one of them", "it names no group of the budget", fix)
    return _of_groups(budget, np.array(found, dtype=np.int64))


def _of_groups(budget: Budget, level: NDArray[np.int64]) -> Roster:
    groups = sorted(budget.groups, key=lambda group: group.epsilon)
    names, epsilons = tuple(group.name for group in groups), tuple(group.epsilon for group in groups)
    return Roster(names, epsilons, tuple(group.share for group in groups), level)


def _read_epsilons(budget: Budget, records: int, epsilons: Any) -> NDArray[np.float64]:
    try:
        budgets = np.asarray(epsilons, dtype=np.float64)
    except (TypeError, ValueError):
        budgets = np.empty((0, 0))
    if budgets.ndim != 1:
        reason = "it is not a column of numbers"
        raise InvalidArgument("epsilons", type(epsilons).__name__, reason, "Pass one ε for each record")
    _require_length("epsilons", len(budgets), records)
    if not np.all((budgets > 0) & (budgets < np.inf)):
        reason = "each must be positive and finite: it is the privacy loss that a person allows"
        raise InvalidArgument("epsilons", "one of them", reason, "Leave people who allow none out")
    if not budget.groups and budgets.max(initial=0.0) > budget.epsilon:
        reason = f"the largest must be at most epsilon={budget.epsilon:g}, which is what may be charged"
        raise InvalidArgument("epsilons", "one of them", reason, "Use a larger budget, or cap them")
    return budgets


def _of_records(budget: Budget, budgets: NDArray[np.float64]) -> Roster:
    """With groups their budgets are a grid, to which each ε is rounded down; otherwise each different ε is a level."""
    if budget.groups:
        declared = sorted(group.epsilon for group in budget.groups)
        return _of_groups(budget, _round_down(budgets, declared))
    if not len(budgets):
        raise InvalidArgument("epsilons", "none", "the list is empty", "Pass one ε for each record")
    different = np.unique(budgets)
    grid = different[:: -(-len(different) // MOST_LEVELS)]
    level = _round_down(budgets, grid)
    shares = tuple((np.bincount(level, minlength=len(grid)) / len(budgets)).tolist())
    return Roster(tuple(map(str, grid.tolist())), tuple(grid.tolist()), shares, level)


def _round_down(budgets: NDArray[np.float64], grid: Any) -> NDArray[np.int64]:
    """The place in the grid of the largest ε that is no larger; `NOBODY` if there is none."""
    return np.searchsorted(grid, budgets, side="right").astype(np.int64) - 1


def _require_length(argument: str, found: int, records: int) -> None:
    if found != records:
        reason = "it has another length than the data"
        raise InvalidArgument(argument, f"{found} of them", reason, "Pass one for each record")
