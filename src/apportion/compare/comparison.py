"""Run recipes side by side on one data set and collect what came out."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from apportion.compare.baseline import train_without_privacy
from apportion.compare.experiment import Experiment, RecipeChoice
from apportion.compare.resolve import Subject, resolve
from apportion.errors import InvalidArgument
from apportion.execution import Execution
from apportion.models.temper import temper
from apportion.planning import Plan, plan_steps
from apportion.sampling import Sampling
from apportion.strategies.clip.clip_schedule import ClipSchedule
from apportion.strategies.context import Context
from apportion.strategies.descriptions import describe
from apportion.training.history import Entry
from apportion.training.optimizers import with_momentum
from apportion.training.progress import progress_bar
from apportion.training.statement import in_words
from apportion.training.storage import Storage
from apportion.training.train import train
from apportion.training.versions import package_versions, source_commit

Announce = Callable[[dict[str, Any]], None]


def compare(
    experiment: Experiment,
    out: Path,
    *,
    data_dir: Path | None = None,
    progress: bool | None = None,
    announce: Announce = lambda run: None,
    skip_unfit: bool = False,
) -> dict[str, Any]:
    """Run every recipe with every seed. `announce` is told of each run as it ends. Returns the content of results.json.

    Args:
        skip_unfit: list a recipe that is refused for this model or these settings under "skipped", with the reason, and go on.
    """
    experiment.check()
    subject = resolve(experiment.data, experiment.model, data_dir)
    runs, skipped = [], []
    for choice in experiment.recipe:
        for seed in experiment.seeds or (None,):
            folder = new_folder(out / "runs", choice.shown if seed is None else f"{choice.shown}-seed{seed}")
            try:
                run = run_recipe(experiment, choice, subject, seed, folder, progress)
            except InvalidArgument as error:  # nothing was trained and nothing charged
                if not skip_unfit:
                    raise
                skipped.append({"recipe": choice.shown, "reason": str(error)})
                break
            runs.append(run)
            announce(run)
    return results(experiment.title, runs) | ({"skipped": skipped} if skip_unfit else {})


def results(title: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The content of results.json."""
    return {
        "version": 1,
        "title": title,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": source_commit(),
        "versions": package_versions(),
        "runs": list(runs),
        "cells": cells(runs),
    }


def run_recipe(
    experiment: Experiment,
    choice: RecipeChoice,
    subject: Subject,
    seed: int | None,
    folder: Path | None,
    progress: bool | None = None,
    storage: Storage | None = None,
    spare: int = 0,
    probe: Callable[[nn.Module], float] | None = None,
    plan: Plan | None = None,
) -> dict[str, Any]:
    """Train once and describe the run.

    Args:
        folder: gets the run folder of a private run.
        storage: how it is kept there, if not as a new run.
        spare: steps that can be taken again after a crash.
        plan: what is executed, if not what follows from the experiment.
        probe: what else is asked of a private run's model whenever it is evaluated, for data that is public; `median_norm` in the history.
    """
    recipe, sampling = choice.recipe(), experiment.sampling()
    lr, optimizer = choice.lr or experiment.lr, choice.optimizer or experiment.optimizer
    momentum = experiment.momentum if choice.momentum is None else choice.momentum
    factory = with_momentum(optimizer, momentum)
    torch.manual_seed(seed or 0)  # the initial weights are public; noise never comes from this generator
    activation = choice.activation or experiment.activation
    model = subject.build(activation)
    if recipe.model is not None:
        model = temper(model, **asdict(recipe.model))
    started = time.perf_counter()
    outcome: dict[str, Any] = {
        "recipe": choice.shown,
        "data": subject.data_name,
        "model": subject.model_name,
        "activation": activation,
        "seed": seed,
        "population": sampling.population,
        "sample_rate": sampling.sample_rate,
        "expected_batch_size": sampling.expected_batch_size,
        "lr": lr,
        "optimizer": optimizer,
        "momentum": momentum,
        "lr_follows": choice.lr_follows,
    }
    if recipe.clip is None or recipe.noise is None:
        history = train_without_privacy(
            model,
            cross_entropy,
            subject.train,
            sampling=sampling,
            lr=lr,
            optimizer=factory,
            evaluate=subject.test,
            seed=seed,
        )
        outcome |= dict.fromkeys(
            ("epsilon", "target_epsilon", "delta", "unit", "neighbours", "accountant", "statement")
        )
        outcome |= {"private": False, "clip": None, "noise": None, "update": None, "steps": sampling.steps}
    else:
        probed: dict[int, dict[str, float]] = {}
        plan = plan or plan_steps(recipe, experiment.budget(), sampling, spare)
        with progress_bar(choice.shown, plan.steps, plan.budget.epsilon, enabled=progress) as show:

            def look(entry: Entry) -> None:
                show(entry)
                if probe is not None and entry.epsilon is not None:
                    probed[entry.step] = {"median_norm": probe(model)}

            run = train(
                model,
                cross_entropy,
                subject.train,
                plan,
                lr=lr,
                optimizer=factory,
                scheduler=_scheduler(experiment.followed(choice), sampling),
                evaluate=subject.test,
                execution=Execution(micro_batch=experiment.micro_batch),
                seed=seed,
                storage=storage or Storage(folder),
                progress=look,
            )
        facts = run.statement()
        history = [entry.as_json() | probed.get(entry.step, {}) for entry in run.history]
        keys = ("epsilon", "target_epsilon", "delta", "unit", "neighbours", "accountant", "private", "clip", "noise")
        outcome |= {key: facts[key] for key in keys}
        outcome |= {"update": describe(recipe.update), "statement": in_words(facts), "steps": run.steps}
        outcome |= {"folder": None if folder is None else str(folder)}
    accuracies = [entry["test_accuracy"] for entry in history if entry.get("test_accuracy") is not None]
    return outcome | {
        "test_accuracy": accuracies[-1] if accuracies else None,
        "seconds": round(time.perf_counter() - started, 3),
        "history": history,
    }


def _scheduler(clip: ClipSchedule | None, sampling: Sampling) -> Callable[[Optimizer], LRScheduler] | None:
    """η_t = η·C_t/C_1, where C_t are the thresholds of `clip`."""
    if clip is None:
        return None

    def threshold(step: int) -> float:
        return clip.threshold_at(Context(min(step, sampling.steps), sampling.steps, sampling.sample_rate))

    return lambda optimizer: LambdaLR(optimizer, lambda taken: threshold(taken + 1) / threshold(1))


def cells(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds: one row for each recipe, data set, model and budget."""
    identity = ("recipe", "data", "model", "target_epsilon", "delta")
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault(tuple(run[name] for name in identity), []).append(run)
    return [dict(zip(identity, key, strict=True)) | over_seeds(members) for key, members in groups.items()]


def over_seeds(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and sample standard deviation of the accuracy, the largest ε that was spent, the mean of the seconds."""
    scores = [run["test_accuracy"] for run in runs if run.get("test_accuracy") is not None]
    spent = [run["epsilon"] for run in runs if run.get("epsilon") is not None]
    return {
        "epsilon": max(spent) if spent else None,
        "test_accuracy": statistics.fmean(scores) if scores else None,
        "test_accuracy_std": statistics.stdev(scores) if len(scores) > 1 else None,
        "seeds": [run["seed"] for run in runs],
        "steps": runs[0]["steps"],
        "seconds": round(statistics.fmean(run["seconds"] for run in runs), 3),
    }


def new_folder(parent: Path, name: str) -> Path:
    """A folder that does not exist yet: the ledger of an earlier run is never overwritten."""
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
    candidates = (parent / (name if number == 1 else f"{name}-{number}") for number in range(1, 10_000))
    return next(path for path in candidates if not path.exists())
