"""Whose records they are: for whom a coin is tossed, what is clipped as one vector, and to which group each belongs.

Where the unit of privacy is the record, every record is drawn, clipped and counted by itself (`RecordOwners`). Where it is the user, the
records of a user are one vector (`UserOwners`). Which record belongs to whom stays inside the curator.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apportion import validate
from apportion.budget import Budget, Selector, User
from apportion.curator.foreign_code import contain_errors
from apportion.curator.records import Records, cut_evenly
from apportion.curator.tree import map_tensors
from apportion.errors import InvalidArgument
from apportion.request import Request

Numbers = NDArray[np.int64]

POOLED_NUMBERS = 1 << 24
"""Gradients of single records that are written out at a time, where the records of several users run together."""
_KEY = b"apportion k_max"
_UNREAD = object()
"""Said of a record that cannot be read, or of which a function cannot say anything."""


class Owners(Protocol):
    """Who owns the records of a data set."""

    @property
    def pooling(self) -> str | None:
        """How the records of one owner become one vector; `None` where each record has its own."""
        ...

    @property
    def coins(self) -> int:
        """How many are tossed for a draw."""
        ...

    @property
    def coin_groups(self) -> Numbers | None:
        """The group of whoever each coin is tossed for; `None` if all are alike."""
        ...

    @property
    def coin_units(self) -> Numbers:
        """The number of the unit that each coin is tossed for."""
        ...

    def records_of(self, drawn: Numbers) -> Numbers:
        """The records that join a batch if these coins fall true, those of one owner side by side."""
        ...

    def cut(self, members: Numbers, size: int, parameters: int) -> list[slice]:
        """Into micro-batches of at most `size` records, for a model with so many trained numbers."""
        ...

    def owner(self, members: Numbers) -> Numbers:
        """The number of the unit that each record belongs to."""
        ...

    def clips(self, request: Request, owners: Numbers) -> Tensor | None:
        """s_p of each of these units; `None` if all are treated alike."""
        ...


class RecordOwners:
    """Every record is a unit of its own.

    Args:
        records: how many there are.
        groups: the group of each, numbered from 0 as in the budget; `None` if all are alike.
    """

    pooling: str | None = None

    def __init__(self, records: int, groups: Numbers | None = None):
        self.coins, self.coin_groups = records, groups

    @property
    def coin_units(self) -> Numbers:
        return np.arange(self.coins)

    def records_of(self, drawn: Numbers) -> Numbers:
        return drawn

    def cut(self, members: Numbers, size: int, parameters: int) -> list[slice]:
        return cut_evenly(len(members), size)

    def owner(self, members: Numbers) -> Numbers:
        return members

    def clips(self, request: Request, owners: Numbers) -> Tensor | None:
        return _clips(request, self.coin_groups, owners)


class UserOwners:
    """The records of a user are one vector.

    Args:
        ids: whose each record is.
        unit: for whom coins are tossed, how records are pooled, and how many of a user are used.
        groups: the group of each user; `None` if all are alike.
    """

    def __init__(self, ids: Sequence[Any], unit: User, groups: Numbers | None = None):
        self.pooling: str | None = unit.pooling
        self._by_record, self._groups = unit.coins == "record", groups
        self._owner = number_users(ids)
        users = int(self._owner.max()) + 1  # also none: whether there is one must not be seen
        order = np.argsort(self._owner, kind="stable")
        of_user = np.split(order, np.searchsorted(self._owner[order], np.arange(users)))[1:]  # the first are nobody's
        names = [str(ids[records[0]]) for records in of_user]
        self._of_user = [_at_most(unit.k_max, *pair) for pair in zip(names, of_user, strict=True)]
        self._eligible = np.concatenate([np.zeros(0, dtype=np.int64), *self._of_user])
        self.coins = len(self._eligible) if self._by_record else users
        self.coin_groups = groups
        if groups is not None and self._by_record:
            self.coin_groups = groups[self._owner[self._eligible]]

    @property
    def coin_units(self) -> Numbers:
        return self._owner[self._eligible] if self._by_record else np.arange(self.coins)

    def records_of(self, drawn: Numbers) -> Numbers:
        if self._by_record:
            return self._eligible[drawn]
        return np.concatenate([np.zeros(0, dtype=np.int64), *(self._of_user[user] for user in drawn)])

    def cut(self, members: Numbers, size: int, parameters: int) -> list[slice]:
        """Whole users together, as many as fit; one with more than `size` records by itself, in several pieces."""
        together = min(size, max(1, POOLED_NUMBERS // max(1, parameters)))
        ends = np.flatnonzero(np.diff(self._owner[members], append=-1)) + 1
        cuts: list[slice] = []
        start = reached = 0
        for end in ends.tolist():
            if reached > start and end - start > together:
                cuts.append(slice(start, reached))
                start = reached
            if end - start > size:
                cuts += [slice(start + cut.start, min(end, start + cut.stop)) for cut in cut_evenly(end - start, size)]
                start = end
            reached = end
        return cuts + ([slice(start, reached)] if reached > start else [])

    def owner(self, members: Numbers) -> Numbers:
        return self._owner[members]

    def clips(self, request: Request, owners: Numbers) -> Tensor | None:
        return _clips(request, self._groups, owners)


def owners_of(records: Records, budget: Budget) -> Owners:
    """Who owns these records, by what the budget says of units and groups."""
    groups = _groups_of(records, budget) if budget.groups else None
    if not isinstance(budget.unit, User):
        return RecordOwners(len(records), groups)
    ids = select(records, "unit.ids", budget.unit.ids, "whose each record is must be known to protect users")
    if groups is not None:
        groups = _strictest(number_users(ids), groups, [group.epsilon for group in budget.groups])
    return UserOwners(ids, budget.unit, groups)


def number_users(ids: Sequence[Any]) -> Numbers:
    """The users, numbered from 0 in the order of their first record; −1 where it is not known whose the record is."""
    numbers: dict[Any, int] = {None: -1, _UNREAD: -1}
    return np.array([numbers.setdefault(one, len(numbers) - 2) for one in ids], dtype=np.int64)


def select(records: Records, argument: str, selector: Selector | None, why: str) -> list[Any]:
    """What the selector says of every record."""
    if selector is None:
        raise InvalidArgument(argument, None, why, "Pass an array, the name of an input, or a function of a record")
    if callable(selector) or isinstance(selector, (str, int)):
        found = [_look(records, selector, index) for index in range(len(records))]
        if found and all(value is _UNREAD for value in found):
            fix = "Check it on a record of your own: it is called with one record's inputs and target, and returns a number or a text"
            raise InvalidArgument(argument, validate.shown(selector), "it fails for every record", fix)
        return found
    if isinstance(selector, (Mapping, Set)):
        fix = "Pass a list or an array, in the order of the records"
        raise InvalidArgument(argument, type(selector).__name__, "its entries are not in the order of the records", fix)
    with contain_errors() as attempt:
        values = [_plain(value) for value in selector]
    if attempt.failure or len(values) != len(records):
        reason = "it must have one entry for each record" if not attempt.failure else "it cannot be read"
        raise InvalidArgument(argument, f"{type(selector).__name__}", reason, "Pass as many entries as records")
    return values


def _look(records: Records, selector: Any, index: int) -> Any:
    """What it says of one record. An exception would tell of it, so a record of which it says nothing is not refused."""
    with contain_errors():
        inputs, target = map_tensors(lambda tensor: tensor[0], records.batch(np.array([index])))
        return _plain(selector(inputs, target) if callable(selector) else inputs[selector])
    return _UNREAD


def _plain(value: Any) -> Any:
    """A number or a text, which can be compared: a tensor or an array of one number becomes that number, and NaN the same as None."""
    plain = value.item() if hasattr(value, "item") else value
    hash(plain)  # raises for what cannot be compared
    return None if plain != plain else plain


def _groups_of(records: Records, budget: Budget) -> Numbers:
    labels = select(records, "labels", budget.labels, "the budget has groups, and who is in which must be declared")
    names = {group.name: number for number, group in enumerate(budget.groups)}
    numeric = any(_is_number(name) for name in names)
    known = names if numeric else names | {str(number): number for number in names.values()}
    keys: dict[Any, int | None] = {label: known.get(label, known.get(_key(label))) for label in labels}
    keys[_UNREAD] = int(np.argmin([group.epsilon for group in budget.groups]))
    unknown = sorted(_key(label) for label, number in keys.items() if number is None)
    if unknown:
        reason = f"no group of the budget is called so; they are {', '.join(known)}"
        declared = not callable(budget.labels) and not isinstance(budget.labels, (str, int))
        found: Any = unknown[:3] if declared else "values in the records"  # which may be anything, and are not shown
        raise InvalidArgument("labels", found, reason, "Use the names of the groups")
    return np.array([keys[label] for label in labels], dtype=np.int64)


def _key(label: Any) -> str:
    """A label as a text. Numbers are the names of groups that are called by numbers, as by their ε; otherwise places, from 0."""
    return f"{float(label):g}" if _is_number(label) else str(label)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _strictest(owner: Numbers, groups: Numbers, epsilons: Sequence[float]) -> Numbers:
    """The group of each user: of those that the user's records name the one with the smallest ε."""
    users: Numbers = np.full(int(owner.max()) + 1, int(np.argmax(epsilons)), dtype=np.int64)
    for user, group in zip(owner.tolist(), groups.tolist(), strict=True):
        if user >= 0 and epsilons[group] < epsilons[users[user]]:
            users[user] = group
    return users


def _at_most(k_max: int | None, name: str, records: Numbers) -> Numbers:
    """At most k_max of a user's records, chosen by a keyed hash of the user and their place among the user's own."""
    if k_max is None or len(records) <= k_max:
        return records

    def rank(place: int) -> bytes:
        return hashlib.blake2b(f"{place} of {name}".encode(), key=_KEY).digest()

    return records[sorted(sorted(range(len(records)), key=rank)[:k_max])]


def _clips(request: Request, groups: Numbers | None, owners: Numbers) -> Tensor | None:
    if groups is None or all(clip == 1 for clip in request.clips):
        return None
    return torch.tensor(request.clips, dtype=torch.float64)[torch.from_numpy(groups[owners])]


Weigh = Callable[[Numbers], Tensor]


def pooling_weights(owners: Owners, members: Numbers) -> Weigh:
    """By how much a drawn record is multiplied in the vector of its owner: 1, or 1 over how many of the owner's were drawn."""
    if owners.pooling == "sum":
        return lambda some: torch.ones(len(some), dtype=torch.float64)
    counts = np.bincount(owners.owner(members), minlength=1)
    return lambda some: torch.from_numpy(1.0 / counts[owners.owner(some)])
