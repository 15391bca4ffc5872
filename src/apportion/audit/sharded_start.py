"""A model that `fully_shard` has divided, as every run of an audit begins with it.

It cannot be copied, so all runs train the model itself. Their weights are those of the start, which are written back at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

from apportion.audit.joined_steps import Division, side_by_side
from apportion.distributed.process_group import find_ranks
from apportion.distributed.sharded_model import ShardedModel, find_sharded
from apportion.errors import InvalidArgument
from apportion.models.synthetic import without_dropout
from apportion.ranks import Ranks

_OWN = frozenset({"model", "optimizer", "update", "generator"})
"""Parts of weights, of the optimiser's state and of the update's; the weights that are gathered from all are the same everywhere."""


class ShardedStart:
    """The parts of this rank at the start.

    Args:
        shards: the divided model.
    """

    def __init__(self, shards: ShardedModel):
        shards.gather()
        self.model, self.whole = shards.model, shards.whole
        self.ranks: Ranks = find_ranks(shards=shards)
        self._parts = shards.parts
        self._weights = {name: part.own().clone() for name, part in shards.parts.items()}
        dimensions = {name: part.dimension for name, part in shards.parts.items()}
        self.division = Division(partial(side_by_side, dimensions=dimensions), _OWN)

    def again(self) -> ShardedModel:
        """The model with the weights of the start, and a whole copy in which no dropout drops anything. Called by all ranks."""
        self._write_back()
        shards = find_sharded(self.model)
        assert shards is not None
        shards.whole, _ = without_dropout(shards.whole)
        shards.gather()
        return shards

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Around runs that move the weights."""
        try:
            yield
        finally:
            self._write_back()

    def _write_back(self) -> None:
        with torch.no_grad():
            for name, part in self._parts.items():
                part.own().copy_(self._weights[name])


def find_start(model: nn.Module, turns: int) -> ShardedStart | None:
    """The start of a model that is divided between the processes of the group; `None` if it is not.

    Args:
        turns: how many ranks are to take turns in this process: one, where processes are ranks.
    """
    shards = find_sharded(model)
    if shards is None:
        return None
    if turns > 1:
        reason = f"the model is divided between {shards.ranks} processes, which are the ranks of its runs"
        raise InvalidArgument("ranks", turns, reason, "Leave ranks out, and call replay in every process")
    return ShardedStart(shards)
