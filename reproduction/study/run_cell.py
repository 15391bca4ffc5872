"""Runs one cell in this process, with one thread, so that the same seed gives the same bits wherever the cell runs."""

from __future__ import annotations

import time
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from apportion.compare.commit import commit
from apportion.compare.comparison import run_recipe
from apportion.compare.resolve import resolve
from apportion.compare.threads import one_thread
from apportion.report.planning import plan_facts, plan_recipe
from apportion.training.versions import package_versions
from reproduction.study.cell import Cell
from reproduction.study.norms import median_norms

_KEPT = ("epsilon", "test_accuracy", "median_norm")


def run_cell(cell: Cell, data_dir: Path | None = None) -> dict[str, Any]:
    """The outcome as data: settings, ε, accuracy, history where it was looked at, and what it was computed with."""
    experiment, source = cell.experiment, commit()  # asked before: the files may change while it runs
    with one_thread(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "delta=", UserWarning)  # δ = 1/N is what the papers use
        if experiment.kind == "price":
            run = _priced(cell)
        else:
            subject = _subject(experiment.data, experiment.model, data_dir)
            probe = median_norms(experiment.data, subject) if experiment.kind == "norms" else None
            run = run_recipe(experiment, cell.choice, subject, cell.seed, None, progress=False, probe=probe)
    looked_at = [entry for entry in run["history"] if any(entry.get(key) is not None for key in _KEPT)]
    return run | {"history": looked_at, "commit": source, "versions": package_versions()}


_subject = cache(resolve)


def _priced(cell: Cell) -> dict[str, Any]:
    """What the plan costs from step to step, by our accountant and in the end by the others; nothing is trained."""
    experiment, choice, started = cell.experiment, cell.choice, time.perf_counter()
    budget = experiment.budget()
    planned = plan_recipe(choice.recipe(), budget, experiment.sampling(), choice.calibrated_by)
    plan = plan_facts(planned, target_epsilon=budget.epsilon, calibration=choice.calibrated_by)
    history = [
        {
            "step": step,
            "epsilon": epsilon,
            "clip": plan["clip"][step - 1],
            "noise_multiplier": plan["noise_multiplier"][step - 1],
        }
        for step, epsilon in plan["spent"]
    ]
    kept = ("epsilon", "target_epsilon", "delta", "unit", "steps", "sample_rate", "expected_batch_size", "claims")
    return {
        "recipe": choice.shown,
        "data": experiment.data,
        "model": None,
        "seed": None,
        **{key: plan[key] for key in kept},
        "population": experiment.population,
        "test_accuracy": None,
        "seconds": round(time.perf_counter() - started, 3),
        "history": history,
    }
