"""Which part of the records a rank draws from: every unit of privacy belongs to exactly one rank."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from apportion.curator.foreign_code import contain_errors
from apportion.curator.tree import tensor_leaves
from apportion.request import Request

if TYPE_CHECKING:
    from apportion.curator.owners import Numbers, Owners
    from apportion.curator.records import Records

COMPARED = 16
"""Records that are looked at to see whether two ranks have the same ones, in the same order."""


@dataclass(frozen=True, eq=False)
class LocalShard:
    """Records that this rank alone has. Without it, every rank is given all records, and draws from its part of them.

    No record may be with two ranks: it would be drawn twice, and weigh twice. A rank without records passes tensors with no rows.

    Args:
        data: as for `train`.
    """

    data: Any


class ShardOwners:
    """The owners of all records, of whom this rank tosses coins for every `ranks`-th unit, beginning with number `rank`.

    The draws of all ranks together are one Poisson draw: each unit has one coin, tossed by one rank, and the streams of the ranks are
    independent. What is clipped as one vector is never divided between ranks.

    Args:
        owners: of all records.
        rank, ranks: which part.
    """

    def __init__(self, owners: Owners, rank: int, ranks: int):
        self._owners = owners
        self._own: Numbers = np.flatnonzero(owners.coin_units % ranks == rank)
        self.pooling, self.coins = owners.pooling, len(self._own)
        groups = owners.coin_groups
        self.coin_groups: Numbers | None = None if groups is None else groups[self._own]

    @property
    def coin_units(self) -> Numbers:
        return self._owners.coin_units[self._own]

    def records_of(self, drawn: Numbers) -> Numbers:
        return self._owners.records_of(self._own[drawn])

    def cut(self, members: Numbers, size: int, parameters: int) -> list[slice]:
        return self._owners.cut(members, size, parameters)

    def owner(self, members: Numbers) -> Numbers:
        return self._owners.owner(members)

    def clips(self, request: Request, owners: Numbers) -> Tensor | None:
        return self._owners.clips(request, owners)


def division_digest(records: Records, owners: Owners) -> bytes:
    """Of how many records there are, whose they are, and what some of them hold: ranks with other digests would not divide one data set.

    A record whose values differ whenever it is read, as by augmentation, or that cannot be read, is not looked at. Secret: a few records
    could be guessed from it.
    """
    seen = hashlib.blake2b(f"{len(records)}".encode(), digest_size=16)
    groups = owners.coin_groups
    for numbers in (owners.coin_units, np.zeros(0, dtype=np.int64) if groups is None else groups):
        seen.update(np.ascontiguousarray(numbers).tobytes())
    for index in np.unique(np.linspace(0, max(0, len(records) - 1), COMPARED, dtype=np.int64))[: len(records)]:
        with contain_errors():
            once, again = (_content(records, index) for _ in range(2))
            if once == again:
                seen.update(once)
    return seen.digest()


def _content(records: Records, index: np.int64) -> bytes:
    leaves = [leaf.detach().cpu().contiguous() for leaf in tensor_leaves(records.batch(np.array([index])))]
    return b"".join(leaf.flatten().view(torch.uint8).numpy().tobytes() for leaf in leaves)
