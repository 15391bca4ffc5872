"""Who teaches whom: by a keyed hash of the record itself, never by its place among the others.

A shuffle would move many records to other teachers when one is added; then one record would change many votes. Here a record's teachers
follow from the record (its content, an id of its own, or its owner), its group and the key of the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.budget import Budget, Group, User
from apportion.curator.foreign_code import contain_errors, watch_signals
from apportion.curator.owners import owners_of, select
from apportion.curator.randomness import KEY_BYTES, Stream
from apportion.curator.records import Records
from apportion.curator.tree import tensor_leaves
from apportion.errors import InvalidArgument
from apportion.teachers.ensemble import Ensemble


def choose_teachers(content: bytes, group: int, ensemble: Ensemble, key: bytes) -> list[int]:
    """The different teachers of one record: those with the smallest of the words that its own key stream has for the seats of its group."""
    seats = np.array(ensemble.seats[group])
    stream = Stream(hashlib.blake2b(content, key=key, digest_size=KEY_BYTES, person=b"apportion-pate").digest())
    order = np.argsort(stream.words(len(seats)), kind="stable")
    return [int(seat) for seat in seats[order[: ensemble.copies[group]]]]


@dataclass(frozen=True, eq=False)
class People:
    """Whose records they are.

    Args:
        records: of everybody.
        used: the indices of those that are learned from: of a user at most k_max.
        groups: for each record the number of its group.
        ids: for each record what chooses its teachers; its content if there are none.
    """

    records: Records
    used: NDArray[np.int64]
    groups: NDArray[np.int64]
    ids: Sequence[Any] | None = None

    @classmethod
    def of(cls, records: Records, budget: Budget, ids: Sequence[Any] | None = None) -> People:
        """As the budget says. All records of a user have the same teachers, so that the user moves no more votes than one record would."""
        unit = budget.unit
        if isinstance(unit, User):
            if ids is not None:
                fix = "Leave it out, or use unit=apportion.Record()"
                raise InvalidArgument(
                    "ids", type(ids).__name__, "the user whose record it is chooses its teachers", fix
                )
            budget = replace(budget, unit=replace(unit, coins="user"))
            ids = select(records, "unit.ids", unit.ids, "whose each record is must be known to protect users")
        elif ids is not None:
            ids = select(records, "ids", ids, "it is what chooses the teachers of a record")
        owners, every = owners_of(records, budget), np.arange(len(records))
        groups = np.zeros(len(records), dtype=np.int64)
        if owners.coin_groups is not None:
            groups = owners.coin_groups[owners.owner(every)]
        return cls(records, owners.records_of(np.arange(owners.coins)), groups, ids)

    def content(self, index: int) -> bytes:
        """What chooses the teachers of a record."""
        return record_content(self.records, index) if self.ids is None else repr(self.ids[index]).encode()


def divide_records(people: People, ensemble: Ensemble, key: bytes) -> list[NDArray[np.int64]]:
    """For each teacher the indices of its records. One that cannot be read has no teacher."""
    parts: list[list[int]] = [[] for _ in range(ensemble.teachers)]
    with watch_signals():
        for index in sorted(people.used.tolist()):
            with contain_errors():
                for teacher in choose_teachers(people.content(index), int(people.groups[index]), ensemble, key):
                    parts[teacher].append(index)
    return [np.array(part, dtype=np.int64) for part in parts]


def spread_groups(contents: Iterable[bytes], groups: Sequence[Group]) -> list[str]:
    """Groups for a benchmark, whose people nobody asked: a hash of each record, or of its owner, chooses in proportion to the shares."""
    edges = np.cumsum([group.share for group in groups])
    places = [_place(content) * edges[-1] for content in contents]
    return [groups[int(np.searchsorted(edges[:-1], place, side="right"))].name for place in places]


def _place(content: bytes) -> float:
    """A number in [0, 1)."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=6).digest(), "big") / 2**48


def record_content(records: Records, index: int) -> bytes:
    """The bytes of a record."""
    leaves = tensor_leaves(records.batch(np.array([index])))
    return b"".join(leaf.contiguous().cpu().numpy().tobytes() for leaf in leaves)
