"""The replay audit: the same run on two neighbouring data sets, with the same noisy answers.

Steps are taken on D, and every noisy sum is kept. Then they are taken on D′, and the kept sums are handed out whatever the exact ones
are. If the guarantee is what it says, then

- both runs do the same: the same requests, charges and noise calls, and bit for bit the same weights, buffers, optimiser state,
  strategy state and history, because all of them follow from the same released values;
- the exact sums lie no further apart than the sensitivity that each release declared;
- all releases of a step together, each in units of its noise, lie no further apart than 1/z of the event that was *charged*.

The first point shows leaks past the noise, the second a broken clip, the third a wrong price. None of them needs many runs: it takes
less than a second and finds deterministic faults with certainty. It says nothing about data sets and settings that were not
replayed, and little about the quality of the random numbers.

Source of the idea: Re:cord-play (arXiv 2602.17454).
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from apportion import validate
from apportion.audit.audited_owners import AuditedOwners
from apportion.audit.neighbour_audit import RECORDS, NeighbourAudit, NewRecorder, one_recorder
from apportion.audit.neighbours import neighbours, outlier_of, records_with
from apportion.audit.recorded_ranks import RecordedProcesses, RecordedTurns, run_watched
from apportion.audit.recorder import LONE_STEP, Recorder
from apportion.audit.replay_report import SHARP, ReplayReport
from apportion.audit.sharded_start import ShardedStart, find_start
from apportion.budget import Budget, Group, Public, Record
from apportion.channel_norm import ChannelNorm
from apportion.curator.curator import Curator, LossFunction
from apportion.curator.gradients.engine import EngineChoice
from apportion.curator.owners import Owners
from apportion.curator.records import Batch, Records, as_records
from apportion.curator.tree import map_tensors
from apportion.curator.views import Views
from apportion.distributed.process_group import find_ranks
from apportion.domain import Domain
from apportion.errors import InvalidArgument, UnsupportedModel
from apportion.execution import Execution, Mode
from apportion.models.check import copy_model
from apportion.models.memory import resolve_micro_batch
from apportion.models.synthetic import without_dropout
from apportion.planning import Plan, find_recipe, plan_steps
from apportion.ranks import Ranks
from apportion.sampling import Sampling
from apportion.strategies.people import IndividualEstimate, IndividualFilter
from apportion.strategies.recipes import Recipe
from apportion.strategies.roles import FeedbackNoise, SteeringUpdate, is_optimizing
from apportion.training.loop import take_steps
from apportion.training.opening import open_session, require_trainable
from apportion.training.optimizers import OptimizerFactory, build_optimizer
from apportion.training.preflight import expected_domain
from apportion.training.private import Private
from apportion.training.record_loss import Reduction
from apportion.training.session import Setup
from apportion.usable import UsableCheck

SAMPLE_RATE = 0.5
POPULATION = 2_000
"""What is declared. Strategies that divide a step's budget by the batch size would find twelve records too few."""
COUNTED = 3
"""In how many steps usable records are counted."""

EPSILON = 8.0
GROUPS = (Group("strict", 2.0, 0.34), Group("medium", 4.0, 0.43), Group("loose", EPSILON, 0.23))
"""Of a recipe that treats groups differently, if no plan says which there are."""

Loop = Callable[[Private], object]


@dataclass(frozen=True, eq=False)
class TrainingSubject:
    """A model, how it is trained, and a plan.

    Args:
        sharded: of a model that is divided between processes, its weights at the start.
    """

    model: nn.Module
    loss_fn: LossFunction | None
    loop: Loop | None
    loss_reduction: Reduction
    optimizer: str | OptimizerFactory
    lr: float
    scheduler: Callable[[Optimizer], LRScheduler] | None
    plan: Plan
    execution: Execution
    engine: EngineChoice
    domain: Domain
    views: Views | None
    sharded: ShardedStart | None = None

    @property
    def foreign(self) -> str:
        return "model" if self.loop is None else "loop"

    def run(
        self, common: Batch, last: Batch | None, recorder: Recorder, *, readable: bool = True, group: int = 0
    ) -> None:
        audited = AuditedOwners.of(self.plan.budget, RECORDS, last=last is not None, group=group)
        recorder.common = audited.common

        def run(recorder: Recorder, ranks: Ranks) -> None:
            records = records_with(common, last, recorder.read, readable, audited.copies)
            self._run(records, common, audited.owners, recorder, ranks)

        run_watched(recorder, audited.owners, run)

    def _run(self, records: Records, common: Batch, owners: Owners, recorder: Recorder, ranks: Ranks) -> None:
        """Take all steps, as one of the ranks or alone."""
        shards = None if self.sharded is None else self.sharded.again()
        model = copy_model(self.model) if shards is None else shards.whole
        optimizer = build_optimizer(model if shards is None else shards.model, self.optimizer, self.lr)
        records.views = self.views
        setup = Setup(
            model=model,
            optimizer=optimizer,
            records=records,
            owners=owners,
            plan=copy.deepcopy(self.plan),
            choice=self.engine,
            execution=self.execution,
            randomness=recorder.randomness,
            scheduler=None if self.scheduler is None else self.scheduler(optimizer),
            validation=Public(common),
            domain=self.domain,
            own_loop=self.loop is not None,
            build_curator=partial(Curator, mechanisms=recorder),
            ranks=ranks if shards is None else find_ranks(shards=shards),
            shards=shards,
        )
        session = open_session(setup)
        recorder.watch(session)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "By a noisy count", UserWarning)  # of far fewer records than are declared
            if self.loop is not None:
                self.loop(Private(session, self.loss_reduction))
            else:
                assert self.loss_fn is not None
                take_steps(session, copy_model(self.loss_fn) if isinstance(self.loss_fn, nn.Module) else self.loss_fn)


def audited_recipe(plan: Plan | Recipe | str) -> Recipe:
    """The recipe that is audited: of a plan, by its name, or as it is."""
    recipe = plan.recipe if isinstance(plan, Plan) else find_recipe(plan)
    if not recipe.private:
        raise InvalidArgument(
            "plan", recipe.name, "it promises nothing that could be broken", "Choose a private recipe"
        )
    return recipe


def replay(
    model: nn.Module,
    loss_fn: LossFunction | None,
    data: Any,
    plan: Plan | Recipe | str = "default",
    *,
    steps: int | None = None,
    optimizer: str | OptimizerFactory | None = None,
    lr: float = 0.1,
    execution: Execution | None = None,
    engine: Mode | None = None,
    loop: Loop | None = None,
    loss_reduction: Reduction = "mean",
    scheduler: Callable[[Optimizer], LRScheduler] | None = None,
    ranks: int = 1,
) -> ReplayReport:
    """Replay a few steps of private training on neighbouring data sets and report whatever tells them apart.

    Args:
        model, loss_fn, data, optimizer, lr, execution: as in `train`; by default momentum, where the update allows it. Twelve records are
            used; the model passed in is not changed.
        plan: a plan, of which the recipe is audited with the unit and the groups of its budget, or a recipe, also by its name. ε and
            sampling are the audit's own: a record must be drawn often enough to be seen.
        steps: at least two, by default 4, or 12 where questions or multipliers follow released values. In the second one of the two
            batches is empty.
        engine: how per-record gradients are computed, "vmap" or "loop"; by default what `train` would choose.
        loop: a training loop of one's own, called with a `Private` as `make_private` returns it; `loss_fn` may then be None.
        loss_reduction, scheduler: for such a loop, as in `make_private`; the scheduler as a function of the optimiser.
        ranks: replay a run of so many ranks, which take turns in this process: what they release together is audited.

    Of a model that `fully_shard` has divided the ranks are the processes of the group. All of them call `replay` with the same arguments,
    and get the same report; the records are those of the first.

    Returns:
        A `ReplayReport`: `report.ok`, `report.findings`, `report.require()`.

    Raises:
        InvalidArgument, UnsupportedModel: as `train` would, or because the runs cannot be compared.
    """
    if steps is not None:
        validate.whole("steps", steps, "one of the steps has an empty batch", "Use steps=4", least=LONE_STEP)
    validate.whole("ranks", ranks, "it is a number of processes", "Use ranks=2")
    if loss_fn is None and loop is None:
        raise InvalidArgument(
            "loss_fn", None, "there is nothing to differentiate", "Pass a loss, or a loop of your own"
        )
    recipe = audited_recipe(plan)
    follows = isinstance(recipe.noise, FeedbackNoise) or isinstance(recipe.update, SteeringUpdate)
    steps = steps or (12 if follows else 4)
    records = as_records(data)
    if not isinstance(model, nn.Module):
        raise InvalidArgument("model", model, f"it is a {type(model).__name__}", "Pass a torch.nn.Module")
    sharded = find_start(model, ranks)
    subject_model, silenced = without_dropout(model if sharded is None else sharded.whole)  # masks would differ
    choice = _engine(engine, subject_model, None if loop else loss_fn, records)
    declared = audited_plan(
        recipe,
        audited_budget(plan, recipe),
        steps,
        counted=not isinstance(plan, Plan) or plan.usable is not None,
        norm=plan.norm if isinstance(plan, Plan) else None,
    )
    subject = TrainingSubject(
        model=subject_model,
        loss_fn=loss_fn,
        loop=loop,
        loss_reduction=loss_reduction,
        optimizer=optimizer or replayed_optimizer(recipe),
        lr=lr,
        scheduler=scheduler,
        plan=declared,
        # Found once for all runs, which have the same model and number of records.
        execution=resolve_micro_batch(
            execution or Execution(), subject_model, choice, records.example[0], declared.expected_batch_size
        ),
        engine=choice,
        domain=expected_domain(None, subject_model, None if loop else loss_fn, records),
        views=records.views,
        sharded=sharded,
    )
    with torch.random.fork_rng(devices=[]), nullcontext() if sharded is None else sharded.kept():
        report = _report(subject, records, ranks)
    notes = [f"dropout was switched off to make the runs comparable: {', '.join(silenced)}"] if silenced else []
    if loop is not None:
        notes.append(
            "a loop of your own raises on records that it cannot evaluate, such as a label out of range: not replayed"
        )
    if report.largest_ratio < SHARP:
        notes.append(
            f"no record moved a release by more than {report.largest_ratio:.2g} of what is allowed: a clip that is a little too "
            "loose would not have been seen. Audit with a smaller threshold as well"
        )
    return replace(report, notes=tuple(notes))


def _report(subject: TrainingSubject, records: Records, ranks: int) -> ReplayReport:
    """Run the subject on neighbours that are made of these records."""
    loss_fn = None if subject.loop else subject.loss_fn
    common, record = shared_and_last(records)
    outlier = outlier_of(subject.model, loss_fn, subject.engine, common, record)
    pairs = neighbours(record, outlier, broken=subject.loop is None)
    new_recorder: NewRecorder = one_recorder
    if subject.sharded is not None:
        processes, division = subject.sharded.ranks, subject.sharded.division
        common, record, pairs = processes.agree((common, record, pairs))
        new_recorder = partial(RecordedProcesses, RECORDS, ranks=processes, division=division)
    elif ranks > 1:
        new_recorder = partial(RecordedTurns, RECORDS, count=ranks, noise_from=subject.execution.noise_from)
    return NeighbourAudit(subject, common, record, new_recorder).report(pairs)


def shared_and_last(records: Records) -> tuple[Batch, Batch]:
    """The records that all data sets of an audit share, and one more."""
    everyone = records.batch(np.arange(RECORDS + 1) % len(records))
    common, record = (
        map_tensors(lambda tensor, part=part: tensor[part], everyone) for part in (slice(RECORDS), slice(RECORDS, None))
    )
    return common, record


def audited_budget(plan: Plan | Recipe | str, recipe: Recipe) -> Budget:
    """Much ε, for everybody; with groups in the order of the plan's, or of three of our own. Their ε lie close together: no noise would do
    for groups that are drawn by different rates, around one as large as the audit's."""
    unit = plan.budget.unit if isinstance(plan, Plan) else Record()
    groups = plan.budget.groups if isinstance(plan, Plan) else GROUPS if _treats_groups(recipe) else ()
    if groups:
        largest = max(group.epsilon for group in groups)
        scaled = [replace(group, epsilon=EPSILON * (3 + group.epsilon / largest) / 4) for group in groups]
        return Budget.of_groups(scaled, delta=1e-5, unit=unit)
    epsilon = EPSILON if getattr(recipe.noise, "multiplier", None) is None else 1e3
    return Budget(epsilon=epsilon, delta=1e-5, unit=unit)


def audited_plan(recipe: Recipe, budget: Budget, steps: int, *, counted: bool, norm: ChannelNorm | None) -> Plan:
    """A plan for few records, which counts usable ones as a run of many would, whatever that costs here."""
    sampling = Sampling(population=POPULATION, sample_rate=SAMPLE_RATE, steps=steps)
    plan = plan_steps(recipe, budget, sampling, norm=norm)
    individual = isinstance(recipe.people, (IndividualEstimate, IndividualFilter))
    return replace(plan, usable=UsableCheck(min(COUNTED, plan.steps), 0.1)) if counted and not individual else plan


def _treats_groups(recipe: Recipe) -> bool:
    return recipe.people is not None and not isinstance(recipe.people, (IndividualEstimate, IndividualFilter))


def replayed_optimizer(recipe: Recipe) -> str:
    """The one that shows most: momentum remembers. An update that sets the weights itself, or is an optimiser, has none."""
    alone = isinstance(recipe.update, SteeringUpdate) or is_optimizing(recipe.update)
    return "sgd" if alone else "momentum"


def _engine(wanted: Mode | None, model: nn.Module, loss_fn: LossFunction | None, data: Records) -> EngineChoice:
    """The engine that `train` would take, or the one that is wanted, with a proof that all runs share. Where there is no proof for that
    one, each run looks for it, and runs records alone."""
    if wanted is None:
        return require_trainable(model, loss_fn, data)
    try:
        return require_trainable(model, loss_fn, data, Execution(engine=wanted))
    except UnsupportedModel:
        require_trainable(model, loss_fn, data)
        return EngineChoice(wanted)
