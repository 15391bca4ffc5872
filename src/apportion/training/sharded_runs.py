"""What a run of a sharded model must fulfil: its strategies and its optimiser work on parts of parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from apportion.distributed.process_group import find_ranks
from apportion.distributed.sharded_model import ShardedModel, find_sharded
from apportion.errors import InvalidArgument
from apportion.execution import Execution
from apportion.ranks import Ranks
from apportion.strategies.update import AdamW, LearningRate, LowPass, Plain, TailAverage
from apportion.strategies.update.update_chain import parts_of

if TYPE_CHECKING:
    from apportion.training.session import Setup

_UPDATES = (LowPass, Plain, AdamW, LearningRate, TailAverage)
_OPTIMIZERS = tuple(
    getattr(torch.optim, name)
    for name in ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop"]
)
"""What treats each coordinate by itself, so that parts of a parameter move as the whole would."""


def find_processes(model: nn.Module, execution: Execution) -> tuple[nn.Module, ShardedModel | None, Ranks]:
    """The model to compute with, how it is divided between the ranks, and the ranks themselves. Called by all ranks."""
    ranks = find_ranks(execution.noise_from)
    with ranks.joined():
        shards = find_sharded(model)
    if len(found := {one: rank for rank, one in enumerate(ranks.gather(shards is not None))}) > 1:
        reason = f"it is sharded on rank {found[True]}, and not on rank {found[False]}; nothing was charged"
        raise InvalidArgument(
            "model", type(model).__name__, reason, "Call fully_shard(model) on every rank, or on none"
        )
    if shards is None:
        return model, None, ranks
    shards.gather()
    return shards.whole, shards, find_ranks(execution.noise_from, shards)


def require_shards_fit(setup: Setup) -> None:
    """Refuse what was built for whole parameters."""
    if setup.shards is None:
        return
    recipe, optimizer = setup.plan.recipe, setup.optimizer
    for part in parts_of(recipe.update):
        if type(part) not in _UPDATES:
            reason = "of a sharded model each rank sees its own part, and this update is not known to treat each coordinate by itself"
            fix = f"Use one of {', '.join(kind.__name__ for kind in _UPDATES)}, or a model that is not sharded"
            raise InvalidArgument("plan", f"{recipe.name} with {type(part).__name__}", reason, fix)
    if type(optimizer) not in _OPTIMIZERS:
        reason = "it steps on parts of a sharded model, and is not known to treat each coordinate by itself"
        fix = f"Use one of torch.optim: {', '.join(kind.__name__ for kind in _OPTIMIZERS)}"
        raise InvalidArgument("optimizer", type(optimizer).__name__, reason, fix)
    if setup.execution.noise_from != "every rank":
        reason = "the noise of a part of a sharded model is added by the rank that keeps the part"
        raise InvalidArgument("noise_from", setup.execution.noise_from, reason, 'Use "every rank", the default')
    if setup.storage.recovery == "exact":
        reason = "draws that are repeated bit for bit are those of a model in one process"
        raise InvalidArgument("recovery", "exact", reason, 'Use recovery="fresh"')
    if setup.plan.norm is not None:
        reason = "constants that normalise features are written to a layer, which a sharded model keeps in parts"
        raise InvalidArgument("plan", "with norm", reason, "Plan without norm=, or use a model that is not sharded")
