"""`train` on a pipeline: the plan, the account, the strategies and the loop of tier 1, with one stage of the model in each process."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from apportion.budget import User
from apportion.curator.gradients.engine import build_engine
from apportion.curator.gradients.losses import LossFunction
from apportion.curator.gradients.model_walk import trained_parameters
from apportion.curator.gradients.one_pass import OnePass
from apportion.curator.owners import Numbers, Owners, RecordOwners, owners_of
from apportion.curator.randomness import Randomness
from apportion.curator.reader import Batch
from apportion.curator.records import Records, as_records
from apportion.curator.tree import map_tensors
from apportion.domain import Domain
from apportion.errors import InvalidArgument
from apportion.execution import MAX_MICRO_BATCH, Execution
from apportion.models.check import copy_model
from apportion.pipeline.pipeline_curator import CHUNKS_PER_STAGE, PipelineCurator, StageModel, require_divisible
from apportion.pipeline.pipeline_ranks import PipelineRanks
from apportion.pipeline.stage_runner import StageRunner
from apportion.pipeline.stage_vetting import ProvedState, VettedStage, vet_stage
from apportion.pipeline.stages import Boundary, Stages, require_stage, skeleton_of
from apportion.planning import Plan, require_plan
from apportion.strategies.people import IndividualEstimate, IndividualFilter
from apportion.strategies.roles import FeedbackNoise
from apportion.strategies.update import Plain
from apportion.training.named_losses import as_loss
from apportion.training.opening import open_session
from apportion.training.optimizers import OptimizerFactory, build_optimizer
from apportion.training.preflight import expected_domain, require_callable
from apportion.training.progress import Show
from apportion.training.recipe_state import RecipeState
from apportion.training.run import Run
from apportion.training.session import Setup
from apportion.training.storage import Storage
from apportion.training.train import run_session


def train(
    stage: nn.Module,
    loss_fn: str | LossFunction,
    data: Any,
    plan: Plan,
    *,
    lr: float,
    optimizer: str | OptimizerFactory = "sgd",
    scheduler: Callable[[Optimizer], LRScheduler] | None = None,
    execution: Execution | None = None,
    seed: int | None = None,
    storage: Storage | None = None,
    domain: Domain | None = None,
    progress: bool | Show | None = None,
    log: Show | None = None,
) -> Run:
    """Train a model whose stages are in the processes of the initialised group: rank r has stage r. The stage is trained in place.

    In every step each record joins the batch with probability q. Stage k clips its gradient g_i^k on each group of its parameters, to C_k,
    and feeds its optimiser with (Σ_i g_i^k·min(1, C_k/‖g_i^k‖) + N(0, (z·C_k/√w_k)²)) / (q·population). With K groups and the allocation
    "equal", w_k is 1/K of what statistics leave, so that the noise of a stage depends on its own threshold and on K.

    Args:
        stage: the part of the model in this process. Parameter w of rank 1 is called 1.w in the plan and in reports.
        loss_fn: as in `apportion.train`, of the last stage's outputs. Every rank names the same.
        data: on the first and the last rank, the same records; `None` on the others, which read none.
        plan: whose clip has groups that lie in one stage each: `groups=per_device(stages)`, or "layer".
        lr, optimizer, scheduler: what applies the released gradients of this stage, as in `apportion.train`.
        execution: `micro_batch` is the number of rows in a chunk. By default about a quarter of a batch for each stage.
        seed: for tests and experiments only. The run is then reproducible and *not private*.
        storage: a ledger of the data set, on the first rank. A run folder is not written: no process has the whole model.
        domain: which values records may have, as in `apportion.train`.
        progress, log: on the first rank, as in `apportion.train`.

    Returns:
        A `Run`, with the same history on every rank; of `run.model` this rank has the values of its own stage.

    Raises:
        InvalidArgument, UnsupportedModel, RankLost: before anything is trained or charged.
        RankLost: when another process ends. The step under way may be charged, and nothing of it was released.

    Source: He et al., Exploring the Limits of Differentially Private Deep Learning with Group-wise Clipping (per-device clipping).
    Guarantee: that of the plan, as in one process (`pipeline_curator.py`). The processes trust each other.
    """
    ranks = PipelineRanks()
    with ranks.joined():
        require_stage(stage)
        require_pipelined(require_plan(plan), storage or Storage(), execution or Execution())
        require_callable("log", log)
        loss_fn = as_loss(loss_fn)
        own = None if data is None else as_records(data)
        require_data(own, ranks)
    setup = pipeline_setup(
        stage,
        loss_fn,
        own,
        plan,
        ranks,
        execution=execution or Execution(),
        optimizer=partial(build_optimizer, optimizer=optimizer, lr=lr),
        randomness=Randomness.choose(seed, ranks.rank),
        storage=storage or Storage(),
        domain=domain,
    )
    if scheduler is not None:
        setup = replace(setup, scheduler=scheduler(setup.optimizer))
    was_training = stage.training
    session = open_session(setup)
    if isinstance(loss_fn, nn.Module):
        loss_fn = copy_model(loss_fn)  # a loss that remembers what it saw must not hand it out
    try:
        return run_session(session, loss_fn, None, None, progress, log or (lambda entry: None))
    finally:
        stage.train(was_training)


def pipeline_setup(
    stage: nn.Module,
    loss_fn: LossFunction,
    own: Records | None,
    plan: Plan,
    ranks: PipelineRanks,
    *,
    execution: Execution,
    optimizer: Callable[[nn.Module], Optimizer],
    randomness: Randomness,
    storage: Storage,
    domain: Domain | None = None,
    owners: Owners | None = None,
    proved: Proved | None = None,
    build_curator: Callable[..., PipelineCurator] = PipelineCurator,
) -> Setup:
    """What a pipelined run is opened with: the usual set-up, with the stage of this process in place of the model.

    Args:
        own: the records of this rank; `None` between the first and the last stage.
        optimizer: makes the optimiser for the stages.
        owners: whose the records are, instead of what the plan's budget says of them, for audits.
        proved: how the stage runs, if that is known, for audits that run it again and again.
        build_curator: makes the curator, for audits.
    """
    execution = in_chunks(execution, plan, ranks)
    rows = execution.physical_batch(plan.expected_batch_size)
    with ranks.joined():
        said = None if own is None or ranks.rank else _records_facts(own, owners or owners_of(own, plan.budget))
    facts = ranks.agree(said)
    assert facts is not None  # the first rank has records
    inside, vetted = proved or vet_in_turn(stage, loss_fn, facts.example, rows, execution, ranks)
    model = Stages(stage, ranks.rank, ranks.gather(skeleton_of(stage)))
    last = ranks.rank == ranks.count - 1
    with ranks.joined():
        made = optimizer(model)
        require_divisible(RecipeState(plan, trained_parameters(model), 1.0).request(1))
        engine = build_engine(stage, vetted.choice)
        assert isinstance(engine, OnePass)  # `vet_stage` has seen to it
        runner = StageRunner(engine, ranks, rows, inside, vetted.outside)
        known = domain or Domain()
        if last and inside is not None:
            known = expected_domain(domain, stage, loss_fn, Records(1, _not_here, (inside.example(), facts.example[1])))
    filler = vetted.filler if ranks.rank == 0 else None
    if last:  # which reads records for their targets alone
        filler = map_tensors(lambda leaf: leaf.to(runner.device), facts.example[0])
    return Setup(
        model=model,
        optimizer=made,
        records=own or Records(facts.count, _not_here, facts.example),
        plan=plan,
        choice=vetted.choice,
        execution=execution,
        randomness=randomness,
        storage=storage,
        domain=ranks.gather(known)[-1],
        owners=RecordOwners(facts.count, facts.groups),
        engine=StageModel(model, runner, ProvedState(stage)),
        build_curator=partial(build_curator, runner=runner, filler=filler),
        ranks=ranks,
    )


@dataclass(frozen=True)
class _RecordsFacts:
    """What the first rank says of the records: how many there are, one of zeros, and the group of each."""

    count: int
    example: Batch
    groups: Numbers | None


def _records_facts(own: Records, owners: Owners) -> _RecordsFacts:
    return _RecordsFacts(len(own), own.example, owners.coin_groups)


Proved = tuple[Boundary | None, VettedStage]
"""What enters the stage of this process, and how it runs."""


def vet_in_turn(
    stage: nn.Module, loss_fn: LossFunction, example: Batch, rows: int, execution: Execution, ranks: PipelineRanks
) -> Proved:
    """Each stage tells the next one what it hands on. Called by all ranks, with one record of zeros."""
    inputs, target = example
    boundaries: list[Boundary] = []
    for number in range(ranks.count):
        vetted = None
        with ranks.joined():
            if number == ranks.rank:
                entering = boundaries[-1].example() if boundaries else inputs
                last = number == ranks.count - 1
                vetted = vet_stage(stage, number, entering, target, loss_fn if last else None, rows, execution)
                found = boundaries[-1] if boundaries else None, vetted
        boundaries.append(ranks.gather(None if vetted is None else vetted.outside)[number])
    return found


def in_chunks(execution: Execution, plan: Plan, ranks: PipelineRanks) -> Execution:
    """With the number of rows in a chunk."""
    return replace(execution, micro_batch=chunk_rows(execution, plan.expected_batch_size, ranks.count))


def chunk_rows(execution: Execution, expected_batch_size: float, stages: int) -> int:
    """Rows of a chunk: as asked for; otherwise such that one turn of the pipeline nearly always has room for a batch."""
    if execution.micro_batch == "auto":
        most = expected_batch_size + 4 * math.sqrt(expected_batch_size)
        return min(math.ceil(most / (CHUNKS_PER_STAGE * stages)), MAX_MICRO_BATCH)
    return min(execution.micro_batch, MAX_MICRO_BATCH)


def require_pipelined(plan: Plan, storage: Storage, execution: Execution) -> None:
    """Refuse, by name, what a run cannot do of which no process has the whole model."""
    recipe, noise = plan.recipe, plan.noise
    refused = {
        "unit": (isinstance(plan.budget.unit, User), "User", "the records of a user would have to be in one chunk"),
        "people": (
            isinstance(recipe.people, (IndividualEstimate, IndividualFilter)),
            type(recipe.people).__name__,
            "it keeps an account of every single person, which one process does",
        ),
        "noise": (
            isinstance(noise, FeedbackNoise),
            type(noise).__name__,
            "it follows the whole released gradient, or the accuracy of the whole model",
        ),
        "update": (
            not isinstance(recipe.update, Plain),
            type(recipe.update).__name__,
            "it was not built for parts of a gradient",
        ),
        "model": (
            recipe.model is not None,
            recipe.name,
            "it changes the activations of the model, of which each rank has a part",
        ),
        "norm": (plan.norm is not None, "norm=", "it is asked about records before the first step"),
    }
    for part, (found, name, reason) in refused.items():
        if found:
            fix = "Use clip.Quantile or clip.Fixed by stages with a noise schedule and update.Plain, or train in one process"
            raise InvalidArgument(f"plan.{part}", name, reason, fix)
    if storage.folder is not None:
        reason = "no process has the whole model, so that there is nothing to write a run folder or a checkpoint of"
        fix = "Pass Storage(ledger=...), and save each stage yourself: its weights are released"
        raise InvalidArgument("storage.folder", str(storage.folder), reason, fix)
    if execution.noise_from != "every rank":
        reason = "every stage adds the noise of its own parameters, which no other has"
        raise InvalidArgument("execution.noise_from", execution.noise_from, reason, "Leave it out")
    if execution.memory_limit is not None:
        reason = "how many chunks are on their way at a time is not part of the memory model"
        raise InvalidArgument("execution.memory_limit", execution.memory_limit, reason, "Pass micro_batch")


def require_data(own: Records | None, ranks: PipelineRanks) -> None:
    """Refuse records that the stage of this process cannot read as all others do, or their absence."""
    ends = ranks.rank in (0, ranks.count - 1)
    if ends and own is None:
        reason = f"rank {ranks.rank} reads {'inputs' if not ranks.rank else 'targets'} of the records"
        raise InvalidArgument("data", None, reason, "Pass the same records to the first and the last rank")
    if own is not None and own.views is not None:
        raise InvalidArgument(
            "data", "views of records", "a chunk has one row for each record", "Use a Dataset that augments"
        )
    if own is not None and own.local:
        reason = "all stages run the same records"
        raise InvalidArgument("data", "LocalShard", reason, "Pass all records to the first and the last rank")


def _not_here(indices: Numbers) -> Batch:
    raise AssertionError("the records are with the first and the last rank")
