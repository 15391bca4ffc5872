"""The replay audit on models that are divided between processes; imported by the processes of the tests."""

from unittest import mock

import torch
from parallel_runs import some_records
from pipelined_runs import MODELS, plan_by_stages
from sharded_work import full, odd_model, sharded
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import apportion as ap
from apportion.curator.curator import Draw
from apportion.curator.randomness import Randomness
from apportion.distributed.process_group import ProcessGroupRanks
from apportion.distributed.sharded_model import ShardedModel
from apportion.training.weights import ShardedWeights


def columns():
    """Parameters that are divided along their second dimension, where they have one; and a layer that drops."""
    from torch.distributed.tensor import Shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Tanh(), nn.Linear(6, 2))
    fully_shard(model, shard_placement_fn=lambda parameter: Shard(parameter.dim() - 1))
    return model


def own_loop(private):
    for inputs, targets in private.batches():
        private.optimizer.zero_grad()
        cross_entropy(private.model(inputs), targets).backward()
        private.optimizer.step()


LOOPS = {None: None, "own": own_loop}
SHARDED = {"odd": lambda: sharded(odd_model()), "columns": columns}


def sharded_replay(rank, recipe="abadi", model="odd", loop=None, broken=None, steps=4, **options):
    """The report of this rank, and whether the model is what it was."""
    made = SHARDED[model]()
    before = {name: full(value).copy() for name, value in made.state_dict().items()}
    with BROKEN[broken](rank):
        report = ap.audit.replay(made, cross_entropy, some_records(), recipe, steps=steps, loop=LOOPS[loop], **options)
    same = all((full(value) == before[name]).all() for name, value in made.state_dict().items())
    return report.as_json(), same


def pipeline_replay(rank, model="two", plan=None, broken=None, steps=4, **options):
    """The report of this rank, and whether its stage is what it was."""
    make, records = MODELS[model]
    stages = make()
    before = [one.detach().clone() for one in stages[rank].parameters()]
    made = plan_by_stages(len(stages), **(plan or {}))
    given = records(20) if rank in (0, len(stages) - 1) else None
    with BROKEN[broken](rank):
        report = ap.pipeline.replay(stages[rank], "cross-entropy", given, made, steps=steps, **options)
    same = all(torch.equal(one, other) for one, other in zip(before, stages[rank].parameters(), strict=True))
    return report.as_json(), same


def refused(rank, arguments):
    """The text by which the audit of a sharded model is refused."""
    try:
        ap.audit.replay(sharded(odd_model()), cross_entropy, some_records(), **arguments)
    except ap.ApportionError as error:
        return str(error)
    return None


# --- broken pieces: what a rank exchanges in its own process ---------------------------------------------------------------


def patch(owner, name, function):
    """Exchange a method; `function` is given the old one first."""
    honest = getattr(owner, name)
    return mock.patch.object(owner, name, lambda *arguments, **named: function(honest, *arguments, **named))


def less_noise_on_the_second_rank(rank):
    def too_small(honest, self, release, exact, share=None):
        share = self._ranks.share if share is None else share
        return honest(self, release, exact, share * (0.95 if rank else 1.0))

    return patch(Draw, "_add_noise", too_small)


def own_sums_twice(rank):
    def add_up(honest, self, names, sum_of):
        sums = {}

        def kept(name):
            sums[name] = sum_of(name)
            return sums[name]

        for name, total in zip(names, honest(self, names, kept), strict=True):
            yield total + self.parts[name].of(sums[name])

    return patch(ShardedModel, "add_up", add_up)


def one_stream_for_both(rank):
    """The seeds of the ranks do not differ."""
    return patch(
        Randomness, "__init__", lambda honest, self, key, *rest, **named: honest(self, bytes(32), *rest, **named)
    )


def stale_weights(rank):
    """The second rank computes with the weights of the start, and nobody compares them."""

    def settle(honest, self):
        before = [one.detach().clone() for one in self._shards.whole.parameters()]
        honest(self)
        if rank:
            for one, old in zip(self._shards.whole.parameters(), before, strict=True):
                one.data.copy_(old)

    skipped = patch(ProcessGroupRanks, "require_same", lambda honest, self, digest: None)
    return _Both(patch(ShardedWeights, "settle", settle), skipped)


class _Both:
    def __init__(self, *patches):
        self._patches = patches

    def __enter__(self):
        for one in self._patches:
            one.start()

    def __exit__(self, *_):
        for one in self._patches:
            one.stop()


def nothing(rank):
    return _Both()


BROKEN = {
    None: nothing,
    **{
        one.__name__: one
        for one in (
            less_noise_on_the_second_rank,
            own_sums_twice,
            one_stream_for_both,
            stale_weights,
        )
    },
}
