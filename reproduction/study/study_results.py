"""`reproduction/results/<study>.json`: what was run, kept so that it is run once, and its means beside what the source printed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from apportion.errors import InvalidArgument
from apportion.reporting.judging import compare_accuracy
from apportion.reporting.result import RunResult
from apportion.reporting.series import Series, group_runs
from apportion.training.checkpoint import replace_file
from reproduction.study.paper_experiment import Cell
from reproduction.study.study import Study

VERSION = 1
Place = tuple[str, str, int | None]
"""Experiment, recipe and seed."""


@dataclass
class StudyResults:
    """The runs of a study so far, by place. The file is replaced as a whole after every run, so it is always complete.

    Args:
        superseded: runs of the file with settings that the study does not have any more. They count as not run, and stay in the file
            until their place is run again.
        without_data: why the data of an experiment could not be read, by the name of the data.
        refused: why a cell could not be run, by its place.
    """

    study: Study
    path: Path
    runs: dict[Place, RunResult] = field(default_factory=dict)
    superseded: dict[Place, RunResult] = field(default_factory=dict)
    without_data: dict[str, str] = field(default_factory=dict)
    refused: dict[Place, str] = field(default_factory=dict)

    @classmethod
    def open(cls, study: Study, path: Path) -> StudyResults:
        """What the file holds and the study still asks for, and what other studies in the folder ran with the same settings."""
        results = cls(study, path)
        if path.exists():
            results._take(_runs(path))
        if not results.missing:
            return results
        others = {_key(run): run for other in sorted(path.parent.glob("*.json")) for run in _runs_if_any(other)}
        for cell in results.missing:
            if (key := cell.key) in others:
                experiment, recipe, _ = cell.place
                results.runs[cell.place] = replace(others[key], experiment=experiment, recipe=recipe)
        return results

    def _take(self, found: Sequence[RunResult]) -> None:
        """Runs of the file: of places that have none here."""
        keys = {cell.place: cell.key for cell in self.study.cells}
        for run in found:
            place = _place(run)
            (self.runs if keys.get(place) == _key(run) else self.superseded).setdefault(place, run)

    @property
    def changed(self) -> list[Cell]:
        """The cells whose kept run had other settings, and which therefore count as not run."""
        return [cell for cell in self.missing if cell.place in self.superseded]

    @property
    def missing(self) -> list[Cell]:
        """The cells that have not been run, in the study's order."""
        return [cell for cell in self.study.cells if cell.place not in self.runs]

    def add(self, cell: Cell, run: RunResult) -> None:
        """Keep a run, durably."""
        details = {**run.details, "key": cell.key, "configuration": cell.configuration()}
        self.runs[cell.place] = replace(run, experiment=cell.place[0], details=details)
        self.save()

    def save(self) -> None:
        """Write the file, with what another command has meanwhile added to it."""
        self._take(_runs_if_any(self.path))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.content(), indent=1, ensure_ascii=False)
        replace_file(self.path, (text + "\n").encode())

    def content(self) -> dict[str, Any]:
        """What the file holds; published figures are always those of the study's file."""
        runs = [self._with_source(cell, self.runs[cell.place]) for cell in self.study.cells if cell.place in self.runs]
        in_use = {_key(run) for run in runs}
        return {
            "version": VERSION,
            "name": self.study.name,
            "title": self.study.title,
            "source": self.study.source,
            "note": self.study.note,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "not_run": self.not_run(),
            "cells": summarise(runs),
            "runs": [run.to_json() for run in runs],
            "superseded": [
                run.to_json()
                for place, run in self.superseded.items()
                if place not in self.runs and _key(run) not in in_use
            ],
        }

    def not_run(self) -> list[dict[str, Any]]:
        """Every figure of the source that has no run beside it, with the reason."""
        found, begun = {}, {place[:2] for place in self.runs}
        for cell in self.missing:
            experiment, recipe, _ = cell.place
            if (experiment, recipe) in begun:  # with another seed
                continue
            data = cell.experiment.data
            # where it was looked for is shown, and not kept: a file of results says nothing of the machine that made it
            absent = f"without data: apportion data fetch {data}" if data in self.without_data else "not run yet"
            reason = self.refused.get(cell.place, absent)
            found[experiment, recipe] = {"paper_accuracy": _fraction(cell.choice.paper), "reason": reason}
        for one in self.study.experiments:
            for later in one.later:
                found[one.shown, later.label] = {"paper_accuracy": _fraction(later.paper), "reason": later.reason}
        return [{"experiment": experiment, "recipe": recipe, **why} for (experiment, recipe), why in found.items()]

    @staticmethod
    def _with_source(cell: Cell, run: RunResult) -> RunResult:
        choice, experiment = cell.choice, cell.experiment
        return replace(
            run,
            experiment=cell.place[0],
            paper_accuracy=_fraction(choice.paper),
            paper_accuracy_std=_fraction(choice.paper_std),
            paper_epsilon=None if run.epsilon is None else experiment.paper_epsilon or experiment.epsilon,
            control_of=choice.control_of,
        )


def _standard_error(deviation: float | None, runs: int) -> float | None:
    return None if deviation is None else deviation / runs**0.5


def summarise(runs: Sequence[RunResult]) -> list[dict[str, Any]]:
    """One row for each recipe of each experiment.

    `met` compares with the source: our mean is above the printed accuracy or close to it. `None` where it printed none, and where we
    spent more than it claims, as plans of a limit theorem do: at another price there is nothing to compare.
    """
    rows = []
    for (experiment, recipe), members in group_runs(runs, lambda run: (run.experiment, run.recipe)).items():
        first = members[0]
        ours = Series(recipe, first.target_epsilon, recipe, "solid", tuple(members))
        mean, paper = ours.score, ours.paper_accuracy
        difference, met = None, None
        if mean is not None and paper is not None:
            difference = mean - paper
            met = None if ours.above_claim else compare_accuracy(mean, paper) != "below"
        rows.append(
            {
                "experiment": experiment,
                "paper_epsilon": None if ours.epsilon is None else ours.paper_epsilon,
                "paper_accuracy": paper,
                "paper_accuracy_std": first.paper_accuracy_std,
                "difference": difference,
                "met": met,
                "control_of": first.control_of,
                **(row := ours.to_json()),
                "standard_error": _standard_error(row["test_accuracy_std"], len(members)),
            }
        )
    return rows


def _place(run: RunResult) -> Place:
    return run.experiment or "", run.recipe, run.seed


def _key(run: RunResult) -> str | None:
    """The fingerprint of the settings that it was run with."""
    return run.details.get("key")


def _runs(path: Path) -> list[RunResult]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = [RunResult.from_json(run) for run in (*content["runs"], *content.get("superseded", ()))]
        if any(run.experiment is None for run in found):
            raise ValueError("a run belongs to no experiment")
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        reason = f"it is no file of results ({type(error).__name__}: {error})"
        raise InvalidArgument("out", str(path), reason, "Move it away, or choose another folder") from error
    return found


def _runs_if_any(path: Path) -> list[RunResult]:
    """Nothing from a file of another kind, or from none."""
    try:
        return [run for run in _runs(path) if isinstance(_key(run), str)]
    except InvalidArgument:
        return []


def _fraction(percent: float | None) -> float | None:
    return None if percent is None else round(percent / 100, 6)
