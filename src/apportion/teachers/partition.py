"""Who teaches whom: by a keyed hash of the record itself, never by its place among the others.

A shuffle would move many records to other teachers when one is added; then one record would change many votes. Here a record's teachers
follow from the record (its content, or an id of its own), its group and the key of the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.budget import Group
from apportion.curator.foreign_code import contain_errors, watch_signals
from apportion.curator.randomness import KEY_BYTES, Stream
from apportion.curator.records import Records
from apportion.curator.tree import tensor_leaves
from apportion.teachers.ensemble import Ensemble


def choose_teachers(content: bytes, group: int, ensemble: Ensemble, key: bytes) -> list[int]:
    """The different teachers of one record: those with the smallest of the words that its own key stream has for the seats of its group."""
    seats = np.array(ensemble.seats[group])
    stream = Stream(hashlib.blake2b(content, key=key, digest_size=KEY_BYTES, person=b"apportion-pate").digest())
    order = np.argsort(stream.words(len(seats)), kind="stable")
    return [int(seat) for seat in seats[order[: ensemble.copies[group]]]]


def divide_records(
    records: Records, groups: NDArray[np.int64], ensemble: Ensemble, key: bytes, ids: Sequence[Any] | None = None
) -> list[NDArray[np.int64]]:
    """For each teacher the indices of its records. One that cannot be read has no teacher."""
    parts: list[list[int]] = [[] for _ in range(ensemble.teachers)]
    with watch_signals():
        for index, group in enumerate(groups):
            with contain_errors():
                content = _content(records, index) if ids is None else repr(ids[index]).encode()
                for teacher in choose_teachers(content, int(group), ensemble, key):
                    parts[teacher].append(index)
    return [np.array(part, dtype=np.int64) for part in parts]


def spread_groups(records: Records, groups: Sequence[Group]) -> list[str]:
    """Groups for a benchmark, whose people nobody asked: each record's own hash chooses, in proportion to the shares."""
    edges = np.cumsum([group.share for group in groups])
    places = [_place(_content(records, index)) * edges[-1] for index in range(len(records))]
    return [groups[int(np.searchsorted(edges[:-1], place, side="right"))].name for place in places]


def _place(content: bytes) -> float:
    """A number in [0, 1)."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=6).digest(), "big") / 2**48


def _content(records: Records, index: int) -> bytes:
    leaves = tensor_leaves(records.batch(np.array([index])))
    return b"".join(leaf.contiguous().cpu().numpy().tobytes() for leaf in leaves)
