"""Means over seeds, beside what the source printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apportion.compare.seeds import over_seeds
from apportion.report.judging import CLOSE, more_than_claimed


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
    first, ours = runs[0], over_seeds(runs)
    mean, spent, paper = ours["test_accuracy"], ours["epsilon"], first.get("paper_accuracy")
    difference = None if mean is None or paper is None else mean - paper
    dearer = spent is not None and more_than_claimed(spent, first["paper_epsilon"])
    return {
        "experiment": experiment,
        "recipe": recipe,
        "data": first["data"],
        "model": first["model"],
        "target_epsilon": first["target_epsilon"],
        "paper_epsilon": None if spent is None else first["paper_epsilon"],
        "delta": first["delta"],
        "paper_accuracy": paper,
        "paper_accuracy_std": first.get("paper_accuracy_std"),
        "difference": difference,
        "met": None if difference is None or dearer else difference >= -CLOSE,
        "control_of": first.get("control_of"),
        **ours,
    }
