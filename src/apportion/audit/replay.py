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
from apportion.audit.neighbours import Neighbour, neighbours, outlier_of, records_with
from apportion.audit.recorded_ranks import RecordedRanks, inspect_ranks, run_watched
from apportion.audit.recorder import LONE_STEP, Recorder
from apportion.audit.replay_comparison import Declared, compare, distances, inspect_noise, inspect_run
from apportion.audit.replay_report import SHARP, Finding, Measured, ReplayReport
from apportion.audit.state import differences
from apportion.budget import Budget, Group, Public, Record
from apportion.channel_norm import ChannelNorm
from apportion.curator.curator import Curator, LossFunction
from apportion.curator.gradients.engine import EngineChoice
from apportion.curator.owners import Owners
from apportion.curator.records import Batch, Records, as_records
from apportion.curator.tree import map_tensors
from apportion.curator.views import Views
from apportion.domain import Domain
from apportion.errors import InvalidArgument, UnsupportedModel
from apportion.execution import Execution, Mode
from apportion.models.check import copy_model
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

RECORDS = 12
"""How many records the data sets share."""
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
class Subject:
    """What is audited: everything but the data."""

    model: nn.Module
    loss_fn: LossFunction | None
    loop: Loop | None
    loss_reduction: Reduction
    optimizer: str | OptimizerFactory
    lr: float
    scheduler: Callable[[Optimizer], LRScheduler] | None
    validation: Public
    plan: Plan
    execution: Execution
    engine: EngineChoice
    domain: Domain
    views: Views | None

    def run(
        self, common: Batch, last: Batch | None, recorder: Recorder, *, readable: bool = True, group: int = 0
    ) -> None:
        """Take all steps on `common` and `last`, whose owner is in `group`, from the same start every time."""
        audited = AuditedOwners.of(self.plan.budget, RECORDS, last=last is not None, group=group)
        recorder.common = audited.common

        def run(recorder: Recorder, ranks: Ranks) -> None:
            records = records_with(common, last, recorder.read, readable, audited.copies)
            self._run(records, audited.owners, recorder, ranks)

        run_watched(recorder, audited.owners, self.execution.noise_from, run)

    def _run(self, records: Records, owners: Owners, recorder: Recorder, ranks: Ranks) -> None:
        """Take all steps, as one of the ranks or alone."""
        model = copy_model(self.model)
        optimizer = build_optimizer(model, self.optimizer, self.lr)
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
            validation=self.validation,
            domain=self.domain,
            own_loop=self.loop is not None,
            build_curator=partial(Curator, mechanisms=recorder),
            ranks=ranks,
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
    subject_model, silenced = without_dropout(model)  # masks would differ with the number of records
    choice = _engine(engine, subject_model, None if loop else loss_fn, records)
    everyone = records.batch(np.arange(RECORDS + 1) % len(records))
    common, record = (
        map_tensors(lambda tensor, part=part: tensor[part], everyone) for part in (slice(RECORDS), slice(RECORDS, None))
    )
    budget = audited_budget(plan, recipe)
    subject = Subject(
        model=subject_model,
        loss_fn=loss_fn,
        loop=loop,
        loss_reduction=loss_reduction,
        optimizer=optimizer or replayed_optimizer(recipe),
        lr=lr,
        scheduler=scheduler,
        validation=Public(common),
        plan=audited_plan(
            recipe,
            budget,
            steps,
            counted=not isinstance(plan, Plan) or plan.usable is not None,
            norm=plan.norm if isinstance(plan, Plan) else None,
        ),
        execution=execution or Execution(),
        engine=choice,
        domain=expected_domain(None, subject_model, None if loop else loss_fn, records),
        views=records.views,
    )
    with torch.random.fork_rng(devices=[]):
        outlier = outlier_of(subject.model, None if loop else loss_fn, subject.engine, common, record)
        pairs = neighbours(record, outlier, broken=loop is None)
        report = NeighbourAudit(subject, common, record, ranks).report(pairs)
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


class NeighbourAudit:
    """Runs one subject on pairs of neighbours."""

    def __init__(self, subject: Subject, common: Batch, record: Batch, ranks: int = 1):
        self._subject, self._common, self._record, self._ranks = subject, common, record, ranks
        plan = subject.plan
        leaves_out = isinstance(plan.recipe.people, IndividualFilter)
        self._declared = Declared(subject.model, plan.expected_batch_size, plan.budget.unit.coins_per_unit, leaves_out)
        self._findings: list[Finding] = []
        self._measured: list[Measured] = []
        self._runs: list[Recorder] = []

    def report(self, pairs: tuple[Neighbour, ...]) -> ReplayReport:
        """Record on D with and without the last record, then replay on every neighbour; its owner in every group."""
        for group in range(len(self._subject.plan.budget.groups) or 1):
            self._report_group(pairs, group)
        runs = self._runs
        return ReplayReport(
            findings=tuple(self._findings),
            neighbours=tuple(self._measured),
            steps=sum(len(run.steps) for run in runs),
            noise_calls=sum(len(step.calls) for run in runs for step in run.steps),
            state_entries=sum(len(state) for run in runs for state in run.states()),
        )

    def _report_group(self, pairs: tuple[Neighbour, ...], group: int) -> None:
        groups = self._subject.plan.budget.groups
        suffix = f", group {groups[group].name}" if groups else ""
        present = self._recorder()
        self._watched(present, self._record, group, forgiving=False)
        if group == 0:
            self._require_comparable(present)
        absent = self._recorder()
        self._watched(absent, None, group)
        for name, last, run in (("D", False, absent), ("D with a record more", True, present)):
            size = self._coins(last, group)
            self._findings += inspect_run(run, name + suffix, self._declared, size)
            self._findings += inspect_noise(run, name + suffix)
            self._findings += inspect_ranks(run, name + suffix)
        for pair in pairs:
            before = absent if pair.before is None else present
            after = self._recorder(before)
            self._watched(after, pair.after, group, readable=pair.readable)
            found, ratio = self._judge(replace(pair, name=pair.name + suffix), before, after, group)
            self._findings += found
            self._measured.append(Measured(pair.name + suffix, ratio, len(found)))
            self._runs.append(after)

    def _recorder(self, kept: Recorder | None = None, secret: int = 0) -> Recorder:
        return (
            Recorder(RECORDS, kept, secret) if self._ranks == 1 else RecordedRanks(RECORDS, kept, secret, self._ranks)
        )

    def _coins(self, last: bool, group: int) -> int:
        return AuditedOwners.of(self._subject.plan.budget, RECORDS, last=last, group=group).owners.coins

    def _judge(self, pair: Neighbour, before: Recorder, after: Recorder, group: int) -> tuple[list[Finding], float]:
        size = self._coins(pair.after is not None, group)
        found = [*inspect_run(after, pair.name, self._declared, size), *compare(before, after, pair.name)]
        measured = list(distances(before, after, pair.multiple, self._declared, group))
        found += [distance.finding(pair.name) for distance in measured if not distance.within]
        found += inspect_ranks(after, pair.name)
        return found, max((distance.ratio for distance in measured if distance.tells), default=0.0)

    def _watched(
        self,
        recorder: Recorder,
        last: Batch | None,
        group: int = 0,
        *,
        readable: bool = True,
        forgiving: bool = True,
        seed: int = 0,
    ) -> None:
        """Run, and keep an exception as what it is here: an observation."""
        torch.manual_seed(seed)
        try:
            self._subject.run(self._common, last, recorder, readable=readable, group=group)
        except Exception as error:
            if not forgiving:
                raise
            recorder.failure = f"{type(error).__name__}: {error}"
        recorder.finish()

    def _require_comparable(self, first: Recorder) -> None:
        """The same data with other secret random bits must give the same sums, or a difference would mean nothing."""
        again = self._recorder(first, secret=1)
        self._watched(again, self._record, seed=1)
        moved = [distance.measured for distance in distances(first, again, 1.0, self._declared)]
        states = zip(first.states(), again.states(), strict=False)
        public = {path for one, other in states for path in differences(one, other)} - {"generator"}
        if again.failure is not None or public or any(distance > 1e-5 for distance in moved):
            raise InvalidArgument(
                "model" if self._subject.loop is None else "loop",
                type(self._subject.model).__name__,
                "it draws random numbers of its own besides dropout, or remembers earlier runs, so that two runs cannot be compared",
                "Audit it with that switched off",
            )
