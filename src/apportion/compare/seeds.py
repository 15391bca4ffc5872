"""What the runs of one recipe with several seeds have in common."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any


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
