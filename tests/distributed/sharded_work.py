"""What the ranks of the tests of sharded models do; imported by their processes."""

import numpy as np
import torch
from parallel_runs import Books, Silent, facts, plan_of, some_records
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import apportion as ap
from apportion.curator import mechanisms
from apportion.curator.curator import Curator
from apportion.curator.gradients.engine import build_engine
from apportion.curator.owners import RecordOwners
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.curator.shard import ShardOwners
from apportion.distributed import find_ranks
from apportion.distributed.sharded_model import find_sharded
from apportion.execution import Execution
from apportion.releases import ClippedSum, UnclippedCount
from apportion.request import Request


class Scaled(nn.Module):
    """A single number, which one rank keeps and the other does not."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor([0.7]))
        self.register_buffer("offset", torch.tensor(0.3))

    def forward(self, x):
        return self.factor * x + self.offset


def odd_model(seed=0):
    """Rows that two ranks cannot share equally: 5, 3 and 1."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), Scaled(), nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2))


NAMES = tuple(name for name, _ in odd_model().named_parameters())


def sharded(model):
    """As people do it: some layers, then the rest."""
    fully_shard(model[0])
    fully_shard(model[3])
    fully_shard(model)
    return model


def releases(kind):
    if kind == "flat":
        return (ClippedSum(0.3),)
    return (
        *(ClippedSum(0.1 * (1 + index), (name,), 0.8 / len(NAMES)) for index, name in enumerate(NAMES)),
        UnclippedCount(0.4, share=0.2),
    )


def whole_answer(released, shards):
    """The gradient of all ranks together, which no rank of a run ever has."""
    whole = {name: torch.zeros(shards.parts[name].parameter.shape) for name in released.gradient}
    shards.gather_into(whole, released.gradient)
    return {name: value.numpy() for name, value in whole.items()}


def answer(rank, kind, rate, silent=True, micro_batch=7, model=None, data=None, multiplier=1.0, seed=3):
    """What the ranks answer about a sharded model, brought together for the comparison."""
    shards = find_sharded(sharded(odd_model()) if model is None else model)
    shards.gather()
    ranks = find_ranks(shards=shards)
    records = as_records(some_records() if data is None else data)
    curator = Curator(
        records,
        build_engine(shards.whole, "one-pass", lent=True),
        Books(),
        Randomness.seeded(seed, rank),
        Execution(micro_batch),
        Silent() if silent else mechanisms,
        owners=ShardOwners(RecordOwners(len(records)), rank, ranks.count),
        ranks=ranks,
    )
    asked = Request(rate, multiplier, 10.0, releases(kind) if isinstance(kind, str) else kind)
    found = curator.answer(asked, cross_entropy)
    shapes = {name: tuple(value.shape) for name, value in found.gradient.items()}
    return whole_answer(found, shards), found.statistics, shapes


def train(rank, recipe="abadi", shard=True, plan=None, storage=None, model=None, seed=None, **options):
    """`ap.train` on a sharded model, or on the same model whole."""
    built = odd_model() if model is None else model()
    built = sharded(built) if shard else built
    run = ap.train(
        built,
        "cross-entropy",
        some_records(),
        plan_of(recipe, **(plan or {})),
        storage=None if storage is None else ap.Storage(**storage),
        **{"lr": 0.5, "seed": seed, "evaluate": ap.Public(some_records(20))} | options,
    )
    return sharded_facts(run)


def sharded_facts(run):
    whole = {name: full(value) for name, value in run.model.state_dict().items()}
    scores = [entry.score for entry in run.history]
    return {"weights": whole, "scores": scores, "clip": [entry.clip for entry in run.history], "epsilon": run.epsilon()}


def full(value):
    return (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().numpy()
