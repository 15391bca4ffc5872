"""Means over seeds, beside what the source printed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

CLOSE = 0.003
"""A cell is met if its mean is at most 0.3 points below the printed accuracy."""


def summarise(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each recipe of each experiment.

    `met` compares with the source: our mean is at least the printed accuracy minus 0.3 points. `None` where it printed none, and where
    we spent more than it claims, as plans of a limit theorem do: at another price there is nothing to compare.
    """
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault((run["experiment"], run["recipe"]), []).append(run)
    return [_row(experiment, recipe, members) for (experiment, recipe), members in groups.items()]


def _row(experiment: str, recipe: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    first = runs[0]
    scores = [run["test_accuracy"] for run in runs if run.get("test_accuracy") is not None]
    spent = [run["epsilon"] for run in runs if run.get("epsilon") is not None]
    mean, paper = statistics.fmean(scores) if scores else None, first.get("paper_accuracy")
    difference = None if mean is None or paper is None else mean - paper
    dearer = any(epsilon > first["paper_epsilon"] * (1 + 1e-9) for epsilon in spent)
    return {
        "experiment": experiment,
        "recipe": recipe,
        "data": first["data"],
        "model": first["model"],
        "target_epsilon": first["target_epsilon"],
        "epsilon": max(spent) if spent else None,
        "paper_epsilon": first["paper_epsilon"] if spent else None,
        "delta": first["delta"],
        "test_accuracy": mean,
        "test_accuracy_std": statistics.stdev(scores) if len(scores) > 1 else None,
        "paper_accuracy": paper,
        "paper_accuracy_std": first.get("paper_accuracy_std"),
        "difference": difference,
        "met": None if difference is None or dearer else difference >= -CLOSE,
        "control_of": first.get("control_of"),
        "seeds": [run["seed"] for run in runs],
        "steps": first["steps"],
        "seconds": round(statistics.fmean(run["seconds"] for run in runs), 3),
    }
