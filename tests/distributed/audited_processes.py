"""The replay audit on models that are divided between processes; imported by the processes of the tests."""

import torch
from parallel_runs import some_records
from pipelined_runs import MODELS, plan_by_stages
from sharded_work import full, odd_model, sharded
from torch.nn.functional import cross_entropy

import apportion as ap


def sharded_replay(rank, recipe="abadi", **options):
    """The report of this rank, and whether the model is what it was."""
    model = sharded(odd_model())
    before = {name: full(value).copy() for name, value in model.state_dict().items()}
    report = ap.audit.replay(model, cross_entropy, some_records(), recipe, **options)
    same = all((full(value) == before[name]).all() for name, value in model.state_dict().items())
    return report.as_json(), same


def pipeline_replay(rank, model="two", clip=None, **options):
    """The report of this rank, and whether its stage is what it was."""
    make, records = MODELS[model]
    stages = make()
    before = [one.detach().clone() for one in stages[rank].parameters()]
    recipe = plan_by_stages(len(stages), clip=clip).recipe
    given = records(20) if rank in (0, len(stages) - 1) else None
    report = ap.pipeline.replay(stages[rank], "cross-entropy", given, recipe, **options)
    same = all(torch.equal(one, other) for one, other in zip(before, stages[rank].parameters(), strict=True))
    return report.as_json(), same
