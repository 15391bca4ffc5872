"""The replay audit of a pipelined run: the same steps on two neighbouring data sets, with the same noisy answers.

As `audit/replay.py`, which has the argument. Every process is watched where it is; what was written down in all of them is put together
to one run, of which each stage has answered its own groups, and judged on every rank, so that all come to the same verdict.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from apportion import validate
from apportion.audit.audited_owners import AuditedOwners
from apportion.audit.joined_steps import Division, all_forms, with_all_coins
from apportion.audit.neighbour_audit import RECORDS, NeighbourAudit
from apportion.audit.neighbours import Neighbour, neighbours, records_with
from apportion.audit.recorded_ranks import RecordedProcesses
from apportion.audit.recorder import LONE_STEP, Recorder
from apportion.audit.recording import NoiseCall, Step
from apportion.audit.replay import audited_budget, audited_plan, audited_recipe, replayed_optimizer, shared_and_last
from apportion.audit.replay_report import SHARP, ReplayReport
from apportion.curator.clipping import group_names
from apportion.curator.curator import StreamSource
from apportion.curator.gradients.losses import LossFunction
from apportion.curator.randomness import KEY_BYTES, DrawStreams, Randomness
from apportion.curator.records import Batch, as_records
from apportion.curator.tree import map_tensors
from apportion.execution import Execution
from apportion.models.check import copy_model
from apportion.models.synthetic import without_dropout
from apportion.pipeline.pipeline_curator import PipelineCurator, stage_of
from apportion.pipeline.pipeline_ranks import PipelineRanks
from apportion.pipeline.pipeline_training import (
    Proved,
    in_chunks,
    pipeline_setup,
    require_data,
    require_pipelined,
    vet_in_turn,
)
from apportion.pipeline.stages import Stages, require_stage, skeleton_of
from apportion.planning import Plan
from apportion.releases import Statistic
from apportion.strategies.recipes import Recipe
from apportion.training.loop import take_steps
from apportion.training.named_losses import as_loss
from apportion.training.opening import open_session
from apportion.training.optimizers import OptimizerFactory, build_optimizer
from apportion.training.storage import Storage

ROWS = 3
"""Of a chunk, unless something else is asked for: a batch of half a dozen records has a second and a third one."""
LARGER = (10.0, 1e3, 1e6)
"""How many times larger the inputs of outliers are. Which of them has the largest gradient nobody knows: no process has the whole model."""
_OWN = frozenset({"model", "modules", "buffers", "optimizer", "generator"})
"""What of the public state is that of one stage."""


class _WatchedDraws:
    """Draws of a pipeline, whose coins all ranks share, with instruments around them."""

    def __init__(self, source: StreamSource, recorder: Recorder):
        self._source, self._recorder = source, recorder

    def next_draw(self) -> DrawStreams:
        return self._recorder.draw(self._source.next_draw())


class WatchedCurator(PipelineCurator):
    """The curator of a stage, with instruments around its draws and its mechanisms."""

    def __init__(self, *arguments: Any, recorder: Recorder, **named: Any):
        super().__init__(*arguments, mechanisms=recorder, **named)
        self._randomness = _WatchedDraws(self._randomness, recorder)


def by_stages(steps: Sequence[Step]) -> Step:
    """Of stages that draw the same records and answer each for its own groups."""
    first, last = steps[0], steps[-1]
    joined = replace(first, calls=[], forms=all_forms(steps))
    if any((step.coins, step.members) != (first.coins, first.members) for step in steps):
        joined = replace(with_all_coins(steps), forms=joined.forms)  # too many coins, which is a finding
    joined.read = last.read if first.read == joined.members else first.read  # both ends read the same
    answers = [step.released for step in steps if step.released is not None]
    if len(answers) < len(steps):
        return joined
    gradient = {name: value for one in answers for name, value in one.gradient.items()}
    joined.released = replace(answers[0], gradient=gradient)
    request, own = answers[0].request, [*map(_named_calls, range(len(steps)), steps)]
    found = {key: call for calls in own if calls is not None for key, call in calls.items()}
    asked = [name for one in request.sums for name in group_names(one, list(gradient))]
    keys: list[str | Statistic] = [*asked, *request.statistics]
    if None not in own and found.keys() == set(keys):
        joined.calls = [found[key] for key in keys]
    return joined


def _named_calls(stage: int, step: Step) -> dict[str | Statistic, NoiseCall] | None:
    """The noise calls of a stage, each with what it was for; `None` if there are more or fewer of them than answers."""
    assert step.released is not None
    counted = [one for one in step.released.request.statistics if stage_of(one) == stage]
    keys: list[str | Statistic] = [*step.released.gradient, *counted]
    return dict(zip(keys, step.calls, strict=True)) if len(keys) == len(step.calls) else None


@dataclass(frozen=True, eq=False)
class PipelineSubject:
    """A stage, how it is trained with the others, and a plan."""

    stage: nn.Module
    model: Stages
    loss_fn: LossFunction
    optimizer: str | OptimizerFactory
    lr: float
    scheduler: Callable[[Optimizer], LRScheduler] | None
    plan: Plan
    execution: Execution
    ranks: PipelineRanks
    proved: Proved
    curator: Callable[..., PipelineCurator]
    foreign = "stage"

    def run(
        self, common: Batch, last: Batch | None, recorder: Recorder, *, readable: bool = True, group: int = 0
    ) -> None:
        assert isinstance(recorder, RecordedProcesses)
        own, ranks = recorder.own, self.ranks
        audited = AuditedOwners.of(self.plan.budget, RECORDS, last=last is not None, group=group)
        own.common, own.records_of = audited.common, audited.owners.records_of
        ends = ranks.rank in (0, ranks.count - 1)
        setup = pipeline_setup(
            copy_model(self.stage),
            self.loss_fn,
            records_with(common, last, own.read, readable) if ends else None,
            copy.deepcopy(self.plan),
            ranks,
            execution=self.execution,
            optimizer=partial(build_optimizer, optimizer=self.optimizer, lr=self.lr),
            randomness=Randomness(bytes([ranks.rank]) * KEY_BYTES, private=False),
            storage=Storage(),
            owners=audited.owners,
            proved=self.proved,
            build_curator=partial(self.curator, recorder=own),
        )
        if self.scheduler is not None:
            setup = replace(setup, scheduler=self.scheduler(setup.optimizer))
        session = open_session(setup)
        own.watch(session)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "By a noisy count", UserWarning)  # of far fewer records than are declared
            take_steps(session, copy_model(self.loss_fn) if isinstance(self.loss_fn, nn.Module) else self.loss_fn)


def replay(
    stage: nn.Module,
    loss_fn: str | LossFunction,
    data: Any,
    plan: Plan | Recipe | str,
    *,
    steps: int = 4,
    lr: float = 0.1,
    optimizer: str | OptimizerFactory | None = None,
    scheduler: Callable[[Optimizer], LRScheduler] | None = None,
    execution: Execution | None = None,
    curator: Callable[..., PipelineCurator] = WatchedCurator,
) -> ReplayReport:
    """Replay a few steps of a pipeline on neighbouring data sets and report whatever tells them apart. Called by all processes.

    Args:
        stage, loss_fn, data, lr, optimizer, scheduler: as in `train`; by default momentum. Thirteen records of the first rank are used; the
            stage passed in is not changed.
        plan: a plan, of which the recipe is audited with the groups of its budget, or a recipe, also by its name. ε and sampling are the
            audit's own.
        steps: at least two. In the second one of the two batches is empty.
        execution: by default chunks have three rows.
        curator: what answers requests, for tests that break it on purpose.

    Returns:
        A `ReplayReport`, the same on every rank: `report.ok`, `report.findings`, `report.require()`.

    Raises:
        InvalidArgument, UnsupportedModel, RankLost: as `train` would, or because the runs cannot be compared.
    """
    ranks, execution = PipelineRanks(), execution or Execution(micro_batch=ROWS)
    with ranks.joined():
        validate.whole("steps", steps, "one of the steps has an empty batch", "Use steps=4", least=LONE_STEP)
        subject_stage, silenced = without_dropout(require_stage(stage))
        recipe = audited_recipe(plan)
        counted = not isinstance(plan, Plan) or plan.usable is not None
        norm = plan.norm if isinstance(plan, Plan) else None
        audited = audited_plan(recipe, audited_budget(plan, recipe), steps, counted=counted, norm=norm)
        require_pipelined(audited, Storage(), execution)
        loss_fn = as_loss(loss_fn)
        own = None if data is None else as_records(data)
        require_data(own, ranks)
        records = None if own is None or ranks.rank else shared_and_last(own)
    agreed = ranks.agree(records)
    assert agreed is not None  # the first rank has records
    common, record = agreed
    execution = in_chunks(execution, audited, ranks)
    rows = execution.physical_batch(audited.expected_batch_size)
    subject = PipelineSubject(
        stage=subject_stage,
        model=Stages(subject_stage, ranks.rank, ranks.gather(skeleton_of(stage))),
        loss_fn=loss_fn,
        optimizer=optimizer or replayed_optimizer(recipe),
        lr=lr,
        scheduler=scheduler,
        plan=audited,
        execution=execution,
        ranks=ranks,
        proved=vet_in_turn(subject_stage, loss_fn, as_records(common).example, rows, execution, ranks),
        curator=curator,
    )
    new_recorder = partial(RecordedProcesses, RECORDS, ranks=ranks, division=Division(by_stages, _OWN))
    with torch.random.fork_rng(devices=[]):
        report = NeighbourAudit(subject, common, record, new_recorder).report(tuple(_neighbours(common, record)))
    notes = [f"dropout of stage {rank} was switched off" for rank, one in enumerate(ranks.gather(silenced)) if one]
    if report.largest_ratio < SHARP:
        notes.append(f"no record moved a release by more than {report.largest_ratio:.2g} of what is allowed")
    return replace(report, notes=tuple(notes))


def _neighbours(common: Batch, record: Batch) -> Iterator[Neighbour]:
    """Those of `audit.replay`, with several outliers in place of the worst one."""
    outliers = {f"inputs × {scale:g}": _larger(record, scale) for scale in LARGER}
    other = record[0], map_tensors(lambda tensor: tensor[:1], common[1])
    yield from neighbours(record, _larger(record, LARGER[-1]), broken=True)
    yield Neighbour("another target added", None, other)
    yield from (Neighbour(f"{name} added", None, outlier) for name, outlier in list(outliers.items())[:-1])


def _larger(record: Batch, scale: float) -> Batch:
    inputs = map_tensors(lambda tensor: tensor * scale if tensor.is_floating_point() else tensor, record[0])
    return inputs, record[1]
