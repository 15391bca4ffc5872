"""Run recipes side by side on one data set and collect what came out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import Subset

from apportion.budget import Public
from apportion.compare.experiment import Experiment, RecipeChoice
from apportion.compare.feature_prediction import save_features
from apportion.compare.feature_subject import on_features
from apportion.compare.prediction import save_encoding
from apportion.compare.resolve import Subject, resolve
from apportion.compare.table_models import in_units
from apportion.compare.view_choice import ViewChoice
from apportion.curator.gradients.losses import LossFunction
from apportion.curator.records import as_records
from apportion.curator.tree import call_model, map_tensors
from apportion.data import KNOWN
from apportion.errors import BudgetExhausted, InvalidArgument
from apportion.execution import Execution
from apportion.models.channel_scaling import ChannelMoments, find_scaling
from apportion.models.temper import temper
from apportion.planning import Plan
from apportion.reporting.measures import Measure
from apportion.reporting.result import HistoryEntry, NotRun, Results, RunResult
from apportion.reporting.series import group_series
from apportion.reporting.write import describe_run
from apportion.sampling import Sampling
from apportion.strategies.clip.clip_schedule import ClipSchedule
from apportion.strategies.context import Context
from apportion.strategies.recipes import Recipe
from apportion.strategies.roles import ValidatedNoise
from apportion.training.early_stopping import EarlyStopping, require_stoppable
from apportion.training.evaluation import Evaluation, choose_evaluation, require_measurable
from apportion.training.history import Entry
from apportion.training.named_losses import mean_loss
from apportion.training.optimizers import OptimizerFactory, build_optimizer, with_momentum
from apportion.training.progress import Show, progress_bar
from apportion.training.storage import Storage
from apportion.training.train import train
from apportion.training.versions import package_versions, source_commit

Announce = Callable[[RunResult], None]
_CHUNK = 1024
"""Records that are read at a time."""


def compare(
    experiment: Experiment,
    out: Path,
    *,
    data_dir: Path | None = None,
    progress: bool | None = None,
    announce: Announce = lambda run: None,
    skip_unfit: bool = False,
    ledger: Path | None = None,
) -> Results:
    """Run every recipe with every seed. `announce` is told of each run as it ends.

    Args:
        skip_unfit: list a recipe that is refused for this model or these settings under `skipped`, with the reason, and go on.
        ledger: of the data set. Each run is admitted to it before it starts, or listed under `skipped` if what is left does not cover it.
    """
    experiment.check()
    if ledger is not None:
        require_chargeable(experiment)
    subject = resolve(experiment.data, experiment.model, data_dir, experiment.table)
    if subject.table is not None and subject.test is None:
        reason = "there is nothing to compare by: no public records were named to measure on"
        raise InvalidArgument("test", None, reason, "Pass --test public.csv")
    runs: list[RunResult] = []
    skipped: list[NotRun] = []
    featured: dict[tuple[str | None, str | None], Subject] = {}
    for choice in experiment.recipe:
        own = experiment.of(choice)
        key = (None if own.features is None else own.features.model_dump_json(), own.model)
        if key not in featured:
            featured[key] = on_features(own, subject, data_dir)
        for seed in experiment.seeds or (None,):
            folder = new_folder(out / "runs", choice.shown if seed is None else f"{choice.shown}-seed{seed}")
            try:
                storage = Storage(folder, ledger)
                run = run_recipe(own, choice, featured[key], seed, folder, progress, storage=storage)
            except (InvalidArgument, BudgetExhausted) as error:  # nothing was trained and nothing charged
                last = choice is experiment.recipe[-1] and not runs
                if last or not (skip_unfit or (runs and isinstance(error, BudgetExhausted))):
                    raise
                skipped.append(NotRun(choice.shown, str(error)))
                break
            runs.append(run)
            announce(run)
    listed = tuple(skipped) if skip_unfit or skipped else None
    return replace(collect_results(experiment.title, runs), skipped=listed)


def require_chargeable(experiment: Experiment) -> None:
    """Refuse runs that would make the promise of a ledger untrue, before any of the others is charged to it."""
    if any(not choice.recipe().private for choice in experiment.recipe):
        reason = "the ledger limits what all runs on this data reveal, and a run without privacy reveals the records"
        raise InvalidArgument("recipe", "non-private", reason, "Leave it out, or the ledger")
    if experiment.seeds:
        reason = "a run with a seed is not private, and would make the promise of the whole data set untrue"
        raise InvalidArgument("seeds", list(experiment.seeds), reason, "Leave them out, or the ledger")


def collect_results(title: str, runs: Sequence[RunResult]) -> Results:
    """The runs of a comparison with their means over seeds, and what they were computed with."""
    cells = [one.to_json() for one in group_series(runs)]
    details = {"commit": source_commit(), "versions": package_versions(), "cells": cells}
    return Results(tuple(runs), title=title, created=datetime.now(UTC).isoformat(timespec="seconds"), details=details)


def run_recipe(
    experiment: Experiment,
    choice: RecipeChoice,
    subject: Subject,
    seed: int | None,
    folder: Path | None,
    progress: bool | None = None,
    *,
    plan: Plan | None = None,
    storage: Storage | None = None,
    probe: Callable[[nn.Module], float] | None = None,
    log: Show | None = None,
) -> RunResult:
    """Train once and describe the run.

    Args:
        folder: gets the run folder of a private run.
        plan: what is executed, if not what follows from the experiment.
        storage: how it is kept in the folder, if not as a new run.
        probe: what else is asked of a private run's model whenever it is evaluated, for data that is public; `median_norm` in the history.
        log: is told of each step of a private run, as in `train`.
    """
    torch.manual_seed(seed or 0)  # the initial weights are public; noise never comes from this generator
    setup = _set_up(experiment, choice, subject, seed, choice.recipe() if plan is None else plan.recipe)
    started = time.perf_counter()
    if setup.recipe.private:
        plan = experiment.own(plan or experiment.plan(setup.recipe), subject)
        scheduler = _scheduler(experiment.followed(choice), setup.sampling)
        result = _train_privately(setup, plan, scheduler, storage or Storage(folder), progress, probe, log)
        result = replace(result, details={**result.details, "folder": None if folder is None else str(folder)})
        if folder is not None:
            save_encoding(folder, subject, setup.recipe, choice.activation or experiment.activation)
            save_features(folder, experiment, subject, setup.recipe, choice.activation or experiment.activation)
    else:
        result = _train_without_privacy(setup)
    if subject.data_name in KNOWN:  # of other data not even the time is published: it follows what was drawn
        result = replace(result, seconds=round(time.perf_counter() - started, 3))
    return result.with_score(result.score)


@dataclass(frozen=True)
class _Setup:
    """What is trained and how; `result` holds what is known before it begins."""

    recipe: Recipe
    sampling: Sampling
    subject: Subject
    views: ViewChoice | None
    model: nn.Module
    lr: float
    optimizer: str | OptimizerFactory
    execution: Execution
    loss: LossFunction
    evaluation: Evaluation | None
    stop: EarlyStopping | None
    result: RunResult

    def augmented(self, data: Any) -> Any:
        """The data, with views of each record where there are some."""
        return data if self.views is None else self.views.views_of(data)


def _set_up(experiment: Experiment, choice: RecipeChoice, subject: Subject, seed: int | None, recipe: Recipe) -> _Setup:
    """The recipe's own settings where it has some, otherwise the experiment's."""
    sampling = experiment.sampling()
    lr, optimizer = choice.lr or experiment.lr, choice.optimizer or experiment.optimizer
    momentum = experiment.momentum if choice.momentum is None else choice.momentum
    activation = choice.activation or experiment.activation
    model = subject.build(activation)
    if recipe.model is not None:
        model = temper(model, **asdict(recipe.model))
    loss, metric = experiment.loss_function(), in_units(experiment.measured_by(), subject.encoding)
    for name in ("metric", "evaluate_every"):
        if (said := getattr(experiment, name)) is not None and subject.test is None:
            reason = "there are no public records to measure on"
            fix = "Pass --test public.csv (of a table), or leave it out; --holdout 0.2 gives one noisy accuracy, or mean absolute error"
            raise InvalidArgument(name, said, reason, fix)
    evaluation = choose_evaluation(subject.test, metric, experiment.evaluate_every, sampling)
    stop = experiment.stopping()
    require_stoppable(stop, evaluation)
    settings: dict[str, Any] = {"activation": activation, "lr": lr, "optimizer": optimizer, "momentum": momentum}
    if subject.extractor is not None:
        settings["features"] = subject.extractor.describe() | {"public": subject.extractor.features.public}
    if experiment.views is not None:
        settings["views"] = experiment.views.model_dump(mode="json")
    settings |= experiment.describe_loss() | (
        Measure(metric.name, metric.better).to_json() if subject.test is not None else {}
    )
    result = RunResult(
        recipe=choice.shown,
        data=subject.data_name,
        model=subject.model_name,
        seed=seed,
        **asdict(sampling),
        expected_batch_size=sampling.expected_batch_size,
        details=settings | {"lr_follows": choice.lr_follows, "clip": None, "noise": None, "update": None},
    )
    factory, execution = with_momentum(optimizer, momentum), Execution(micro_batch=experiment.micro_batch)
    return _Setup(
        recipe, sampling, subject, experiment.views, model, lr, factory, execution, loss, evaluation, stop, result
    )


def _train_without_privacy(setup: _Setup) -> RunResult:
    """Ordinary training, for comparison: shuffled mini-batches of the same expected size and as many steps as a private run.

    No clipping, no noise, no guarantee. Never use it on records that need protection.
    """
    model, steps, evaluation = setup.model, setup.sampling.steps, setup.evaluation
    if evaluation is not None:
        require_measurable(model, evaluation.data, metric=evaluation.metric)
    records = as_records(setup.augmented(setup.subject.usable_train))
    if (layer := find_scaling(model)) is not None:
        chunks = np.array_split(np.arange(len(records)), math.ceil(len(records) / _CHUNK))
        layer.write(*ChannelMoments(layer).exact_constants(records.batch(chunk)[0] for chunk in chunks))
    updates = build_optimizer(model, setup.optimizer, setup.lr)
    generator = np.random.default_rng(setup.result.seed)
    size = max(1, round(setup.sampling.expected_batch_size))
    order = np.empty(0, dtype=np.int64)
    history: list[HistoryEntry] = []
    scores: list[float | None] = []
    model.train()
    for step in range(1, steps + 1):
        if len(order) < size:
            order = np.concatenate([order, generator.permutation(len(records))])
        inputs, targets = records.batch(order[:size])
        order = order[size:]
        if records.views is not None:
            seeds, count = generator.integers(0, 2**64, size, dtype=np.uint64), records.views.count
            inputs = records.views.of(inputs, seeds[: len(targets)])
            targets = map_tensors(lambda tensor, count=count: tensor.repeat_interleave(count, 0), targets)
        updates.zero_grad()
        mean_loss(setup.loss, call_model(model, inputs), targets).backward()
        updates.step()
        history.append(HistoryEntry(step))
        if evaluation is not None and evaluation.is_due(step, setup.sampling):
            scores.append(evaluation.measure(model))
            history[-1] = history[-1].with_score(evaluation.metric.name, scores[-1])
            if setup.stop is not None and setup.stop.is_reached(scores, evaluation.metric.better):
                break
    return replace(setup.result, private=False, steps=len(history), history=tuple(history))


def _train_privately(
    setup: _Setup,
    plan: Plan,
    scheduler: Callable[[Optimizer], LRScheduler] | None,
    storage: Storage,
    progress: bool | None,
    probe: Callable[[nn.Module], float] | None,
    log: Show | None,
) -> RunResult:
    known, probed = setup.result, {}
    records = as_records(setup.augmented(setup.subject.train))
    records.found = setup.subject.problems
    validated = isinstance(plan.noise, ValidatedNoise)
    validation, test = None, setup.subject.test
    if validated and test is not None:
        validation, test = split_public(test)
    measured = setup.evaluation
    with progress_bar(known.recipe, plan.steps, plan.budget.epsilon, enabled=progress) as show:

        def look(entry: Entry) -> None:
            show(entry)
            if probe is not None and entry.epsilon is not None:
                probed[entry.step] = {"median_norm": probe(setup.model)}

        run = train(
            setup.model,
            setup.loss,
            records,
            plan,
            lr=setup.lr,
            optimizer=setup.optimizer,
            scheduler=scheduler,
            evaluate=test,
            metric=None if measured is None else measured.metric,
            evaluate_every=None if measured is None else measured.every,
            validation=validation,
            execution=setup.execution,
            seed=known.seed,
            storage=storage,
            domain=setup.subject.domain,
            progress=look,
            log=log,
            stop=setup.stop,
        )
    history = [entry.as_json() | probed.get(entry.step, {}) for entry in run.history]
    found = describe_run(run.statement(), run.configuration(), history)
    strategies = {
        role: found.details[role] for role in ("clip", "noise", "update", "groups", "data_set") if role in found.details
    }
    details = {**known.details, **strategies}
    if run.usable is not None:
        details["usable"] = round(run.usable, 3)
    if validated:
        details["validation"] = "every second record of the test data, which is not used for the accuracy"
    return replace(found, recipe=known.recipe, data=known.data, model=known.model, seed=known.seed, details=details)


def split_public(public: Public) -> tuple[Public, Public]:
    """Every second record, for a recipe that chooses by accuracy on public data; and the others, to see how accurate it really is."""
    if isinstance(public.data, tuple):
        parts = [map_tensors(lambda tensor, start=start: tensor[start::2], public.data) for start in (0, 1)]
    else:
        parts = [Subset(public.data, range(start, len(public.data), 2)) for start in (0, 1)]
    return Public(parts[0]), Public(parts[1])


def _scheduler(clip: ClipSchedule | None, sampling: Sampling) -> Callable[[Optimizer], LRScheduler] | None:
    """η_t = η·C_t/C_1, where C_t are the thresholds of `clip`."""
    if clip is None:
        return None

    def threshold(step: int) -> float:
        return clip.threshold_at(Context(min(step, sampling.steps), sampling.steps, sampling.sample_rate))

    return lambda optimizer: LambdaLR(optimizer, lambda taken: threshold(taken + 1) / threshold(1))


def new_folder(parent: Path, name: str) -> Path:
    """A folder that does not exist yet: the ledger of an earlier run is never overwritten."""
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
    candidates = (parent / (name if number == 1 else f"{name}-{number}") for number in range(1, 10_000))
    return next(path for path in candidates if not path.exists())
