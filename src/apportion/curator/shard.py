"""Which part of the records a rank draws from: every unit of privacy belongs to exactly one rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from apportion.request import Request

if TYPE_CHECKING:
    from apportion.curator.owners import Numbers, Owners


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
