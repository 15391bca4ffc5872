"""`judged.toml`: the printed figures that our runs are judged by, listed before the runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from apportion.compare.experiment import read_file

FILE = Path(__file__).parent / "judged.toml"


@dataclass(frozen=True, eq=False)
class JudgedTable:
    """A table of a paper.

    Args:
        study: whose runs are judged.
        printed: the accuracy that the paper prints, in percent, by experiment and recipe.
        reasons: why an experiment, or "experiment: recipe", is not run.
    """

    title: str
    study: str
    printed: Mapping[str, Mapping[str, float]]
    reasons: Mapping[str, str]

    @property
    def cells(self) -> list[tuple[str, str, float]]:
        """Experiment, recipe and printed accuracy of each."""
        return [(label, recipe, one) for label, row in self.printed.items() for recipe, one in row.items()]

    def reason(self, experiment: str, recipe: str) -> str:
        """Why a cell has no run."""
        return self.reasons.get(f"{experiment}: {recipe}") or self.reasons.get(experiment) or "not run yet"


@cache
def judged_tables() -> tuple[JudgedTable, ...]:
    """All of them, paper by paper."""
    tables: list[dict[str, Any]] = read_file(FILE)["table"]
    return tuple(JudgedTable(one["title"], one["study"], one["printed"], one.get("not_run", {})) for one in tables)


def printed_figures(study: str) -> Mapping[str, Mapping[str, float]]:
    """What is printed for the experiments of a study; nothing if it is not judged."""
    return {label: row for table in judged_tables() if table.study == study for label, row in table.printed.items()}
