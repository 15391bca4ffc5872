"""What the stages of the tests do; imported by their processes."""

from functools import partial

import numpy as np
import torch
from parallel_runs import Books, Silent, plan_of
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import apportion as ap
from apportion.curator import mechanisms
from apportion.curator.curator import Curator
from apportion.curator.gradients.engine import build_engine
from apportion.curator.owners import RecordOwners
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.execution import Execution
from apportion.pipeline import per_device, pipeline_training
from apportion.pipeline.pipeline_curator import PipelineCurator
from apportion.pipeline.pipeline_ranks import PipelineRanks, SharedCoins
from apportion.ranks import ALONE
from apportion.releases import ClippedSum, UnclippedCount
from apportion.request import Request
from apportion.training.named_losses import as_loss
from apportion.training.storage import Storage

ENTERING, LEAVING = 6, 5
"""Numbers of a record as it enters the first stage of two, and as it leaves it."""
ROWS = 3


def two_stages():
    torch.manual_seed(0)
    return [
        nn.Sequential(nn.Linear(ENTERING, 8), nn.Tanh(), nn.Linear(8, LEAVING)),
        nn.Sequential(nn.Tanh(), nn.Linear(LEAVING, 4), nn.ReLU(), nn.Linear(4, 2)),
    ]


def four_stages():
    torch.manual_seed(0)
    return [
        nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 6)),
        nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.GELU()),
        nn.Sequential(nn.LSTM(6, 5, batch_first=True), _Last()),
        nn.Sequential(nn.Dropout(0.0), nn.Linear(5, 3)),
    ]


class _Last(nn.Module):
    def forward(self, states):
        return states[0][:, -1]


def some_records(count=40):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, ENTERING, generator=generator)
    return inputs, (inputs.sum(1) > 0).long()


def some_texts(count=30):
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, 9, (count, 7), generator=generator), torch.randint(0, 3, (count,), generator=generator)


MODELS = {"two": (two_stages, some_records), "four": (four_stages, some_texts)}


def names_of(stages):
    return [[f"{number}.{name}" for name, _ in stage.named_parameters()] for number, stage in enumerate(stages)]


def releases_of(stages, clip=0.2):
    """For each stage a threshold and a count of its own."""
    names, share = [tuple(one) for one in names_of(stages)], 1 / len(stages)
    return tuple(
        one
        for number, group in enumerate(names)
        for one in (
            ClippedSum(clip * (number + 1), group, 0.8 * share),
            UnclippedCount(clip * (number + 1), group, 0.2 * share),
        )
    )


def plan_by_stages(stages, steps=6, rate=0.5, population=40, clip=None, **more):
    clip = clip or ap.clip.Quantile(start=1.0, quantile=0.5, share=0.05, groups=per_device(stages))
    recipe = ap.Recipe(name="per-device", clip=clip, noise=ap.noise.Constant())
    return plan_of(recipe, steps=steps, rate=rate, population=population, **more)


def curator_of(rank, stages, data, silent=True, seed=3, books=None, rows=ROWS, loss="cross-entropy", kind=PipelineCurator):
    """The curator of this rank for a plan that is of no account."""
    setup = pipeline_training.pipeline_setup(
        stages[rank],
        as_loss(loss),
        as_records(data),
        plan_by_stages(len(stages)),
        PipelineRanks(),
        execution=Execution(micro_batch=rows),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        randomness=Randomness.seeded(seed, rank),
        storage=Storage(),
        build_curator=partial(kind, mechanisms=Silent() if silent else mechanisms),
    )
    return setup.build_curator(
        setup.records,
        setup.engine,
        books or Books(),
        setup.randomness,
        setup.execution,
        owners=setup.owners,
        domain=setup.domain,
        ranks=setup.ranks,
    )


class Seeded:
    """Coins as those of a pipeline."""

    def __init__(self, seed):
        self._coins = SharedCoins(Randomness.seeded(seed), ALONE)

    def next_draw(self):
        return self._coins.next_draw()


def answer_alone(stages, data, request, seed=3, loss="cross-entropy", engine="one-pass", rows=ROWS):
    """What one process answers: the same groups of the whole model."""
    model = nn.Sequential(*stages)
    records = as_records(data)
    one = Curator(
        records,
        build_engine(model, engine),
        Books(),
        Seeded(seed),
        Execution(rows),
        Silent(),
        owners=RecordOwners(len(records)),
    )
    return one.answer(request, as_loss(loss))


def answer(rank, model, rate, seed=3, data=None, rows=ROWS, times=1):
    make, records = MODELS[model]
    stages = make()
    request = Request(rate, 1.0, 10.0, releases_of(stages))
    one = curator_of(rank, stages, records() if data is None else data, seed=seed, rows=rows)
    for _ in range(times):
        found = one.answer(request, as_loss("cross-entropy"))
    return {name: value.numpy() for name, value in found.gradient.items()}, found.statistics


class Counted(TorchDispatchMode):
    """Every message that goes through torch.distributed: what it was, and its bytes."""

    def __init__(self):
        super().__init__()
        self.messages = []

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        if function.namespace == "c10d":
            leaves = torch.utils._pytree.tree_leaves(arguments)
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
            self.messages.append((function._schema.name.removeprefix("c10d::"), sum(one.nbytes for one in tensors)))
        return function(*arguments, **(named or {}))
