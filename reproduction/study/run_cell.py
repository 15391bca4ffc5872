"""Runs one cell in this process, with one thread, so that the same seed gives the same bits wherever the cell runs."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from apportion.compare.comparison import run_recipe
from apportion.compare.feature_subject import on_features
from apportion.compare.processes import one_thread
from apportion.compare.resolve import Subject, resolve
from apportion.planning import plan_steps
from apportion.reporting.plan_page import plan_by_limit_theorem, plan_facts, plan_recipe
from apportion.reporting.result import HistoryEntry, RunResult
from apportion.training.versions import package_versions, source_commit
from reproduction.study.distorted_clients import run_clients
from reproduction.study.gradient_norms import median_norms
from reproduction.study.loose_accountants import OTHERS, plan_loosely
from reproduction.study.paper_experiment import Cell, PaperExperiment

_resolved = cache(resolve)
_featured: dict[str, Subject] = {}
"""What was computed in this process, by data set, features and model: features of a data set serve all of its cells."""


def run_cell(cell: Cell, data_dir: Path | None = None) -> RunResult:
    """The outcome: settings, ε, accuracy, the history of evaluated steps, and what it was computed with."""
    commit = source_commit()  # before the run: the files may change while it runs
    with one_thread(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "delta=", UserWarning)  # δ = 1/N is what the papers use
        run = _trained(cell, data_dir) if cell.needs_data else _priced(cell)
    details = {**run.details, "commit": commit, "versions": package_versions()}
    return replace(run, history=tuple(entry for entry in run.history if _is_evaluated(entry)), details=details)


def _is_evaluated(entry: HistoryEntry) -> bool:
    return any(one is not None for one in (entry.epsilon, entry.test_accuracy, entry.details.get("median_norm")))


def _trained(cell: Cell, data_dir: Path | None) -> RunResult:
    experiment, choice = cell.experiment.of(cell.choice), cell.choice
    subject = _subject(experiment, data_dir)
    probe = median_norms(experiment.data, subject) if experiment.kind == "norms" else None
    plan = None
    if choice.calibrated_by == "clt":  # the noise of the limit theorem, at its true price
        plan = plan_by_limit_theorem(choice.recipe(), experiment.budget(), experiment.sampling())
    elif choice.calibrated_by in OTHERS:  # more noise than is needed
        plan = plan_loosely(choice.calibrated_by, choice.recipe(), experiment.budget(), experiment.sampling())
    elif experiment.group:
        planned = plan_steps(choice.recipe(), experiment.budget(), experiment.sampling())
        plan = planned.with_owners(labels=deal_groups([one.share for one in experiment.group], len(subject.train[1])))
    if experiment.clients is not None:
        plan = plan or experiment.plan(choice.recipe())
        run = run_clients(experiment, choice, experiment.clients, subject, cell.seed, plan)
    else:
        run = run_recipe(experiment, choice, subject, cell.seed, None, progress=False, probe=probe, plan=plan)
    return replace(run, target_epsilon=experiment.epsilon) if run.target_epsilon and experiment.epsilon else run


def _subject(experiment: PaperExperiment, data_dir: Path | None) -> Subject:
    """The data set, or its features, and the model."""
    subject = _resolved(experiment.data, experiment.model, data_dir)
    if experiment.features is None:
        return subject
    key = f"{experiment.data} {experiment.model} {experiment.features.model_dump_json()}"
    if key not in _featured:
        _featured[key] = on_features(experiment, subject, data_dir)
    return _featured[key]


def deal_groups(shares: Sequence[float], records: int) -> list[int]:
    """The number of the group of each record: dealt at random, the same in every run, in shares as close as whole numbers allow."""
    ends = np.round(np.cumsum(shares) * records).astype(int)
    groups = np.searchsorted(ends, np.arange(records), side="right")
    dealt: list[int] = np.random.default_rng(0).permutation(groups).tolist()
    return dealt


def _priced(cell: Cell) -> RunResult:
    """What the plan costs from step to step, by our accountant and in the end by the others; nothing is trained."""
    experiment, choice, started = cell.experiment.of(cell.choice), cell.choice, time.perf_counter()
    budget = experiment.budget()
    planned = plan_recipe(choice.recipe(), budget, experiment.sampling(), choice.calibrated_by)
    plan = plan_facts(planned, target_epsilon=budget.epsilon, calibration=choice.calibrated_by, with_claims=True)
    history = tuple(
        HistoryEntry(step, epsilon, (plan["clip"][step - 1],), plan["noise_multiplier"][step - 1])
        for step, epsilon in plan["spent"]
    )
    kept = ("epsilon", "target_epsilon", "delta", "unit", "steps", "sample_rate", "expected_batch_size")
    return RunResult(
        recipe=choice.shown,
        data=experiment.data,
        population=experiment.population,
        seconds=round(time.perf_counter() - started, 3),
        history=history,
        details={"claims": plan["claims"]},
        **{key: plan[key] for key in kept},
    )
