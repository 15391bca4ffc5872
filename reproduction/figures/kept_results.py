"""Reads a folder of results, and refuses what does not have the form of results before anything is drawn of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, ValidationError

from apportion.errors import InvalidArgument
from apportion.reporting.result import RunResult
from reproduction.trials.design import GROUPS
from reproduction.trials.kept import KeptTrials, trials_file


def _printable(words: str) -> str:
    """Letters that no picture and no page may hold, such as control characters, become spaces."""
    return "".join(one if one.isprintable() else " " for one in words)


def _read_runs(runs: Any) -> tuple[RunResult, ...]:
    """As the reports read them."""
    if not isinstance(runs, list):
        raise ValueError("they are not a list")
    return tuple(RunResult.from_json(run, f"runs[{place}]") for place, run in enumerate(runs))


Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e12, le=1e12)]
Text = Annotated[str, AfterValidator(_printable)]


class _Part(BaseModel):
    """Part of a file: what is not read here is ignored, and nothing is converted."""

    model_config = ConfigDict(frozen=True, strict=True, arbitrary_types_allowed=True)


_Kind = TypeVar("_Kind", bound=_Part)


class Cell(_Part):
    """Mean and deviation over the seeds of a recipe."""

    experiment: Text
    recipe: Text
    data: Text
    model: Text | None
    target_epsilon: Number | None
    epsilon: Number | None
    paper_epsilon: Number | None
    delta: Number | None
    test_accuracy: Number | None
    test_accuracy_std: Number | None
    paper_accuracy: Number | None
    paper_accuracy_std: Number | None
    difference: Number | None
    met: bool | None
    control_of: Text | None
    seeds: list[int | None]
    seconds: Number


class NotRun(_Part):
    """A figure of the source without a run of ours."""

    experiment: Text
    recipe: Text
    reason: Text


class StudyFile(_Part):
    """`results/<study>.json`."""

    title: Text
    source: Text
    note: Text
    not_run: list[NotRun]
    cells: list[Cell]
    runs: Annotated[tuple[RunResult, ...], PlainValidator(_read_runs)]

    @property
    def experiments(self) -> list[str]:
        """Their labels, in order, with those that were not run."""
        labels = [cell.experiment for cell in self.cells] + [entry.experiment for entry in self.not_run]
        return list(dict.fromkeys(labels))

    def of(self, experiment: str) -> list[Cell]:
        return [cell for cell in self.cells if cell.experiment == experiment]

    def runs_of(self, experiment: str) -> dict[str, list[RunResult]]:
        """The runs of an experiment, by recipe."""
        found: dict[str, list[RunResult]] = {}
        for run in self.runs:
            if _printable(run.experiment or "") == experiment:
                found.setdefault(_printable(run.recipe), []).append(run)
        return found


class Trial(_Part):
    run: int
    epoch: int
    threshold: Number
    accuracy: Number


class _Rule(_Part):
    name: Text


class _Settings(_Part):
    data: Text
    rule: _Rule


class SearchFile(_Part):
    """`results/search_*.json`: thresholds by epoch, and every candidate that was tried."""

    thresholds: list[Number]
    settings: _Settings
    trace: list[Trial]

    def accuracies(self) -> list[float]:
        """The best of each epoch of the first run."""
        epochs = range(1, len(self.thresholds) + 1)
        tried = [[one.accuracy for one in self.trace if (one.run, one.epoch) == (1, epoch)] for epoch in epochs]
        return [max(scores) for scores in tried if scores]


@dataclass(frozen=True)
class Results:
    """All files of a folder, by the stem of their name; trials by the group of their designs. `unknown` are those that are none of them."""

    studies: Mapping[str, StudyFile] = field(default_factory=dict)
    searches: Mapping[str, SearchFile] = field(default_factory=dict)
    trials: Mapping[str, KeptTrials] = field(
        default_factory=lambda: {group: KeptTrials(trials_file(group)) for group in GROUPS}
    )
    unknown: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> Results:
        """What is in the folder; nothing if there is none."""
        studies, searches, unknown = {}, {}, []
        trials = {group: trials_file(group, folder) for group in GROUPS}
        for file in sorted(folder.glob("*.json")):
            content = _content(file)
            if isinstance(content, dict) and "runs" in content:
                studies[file.stem] = _checked(StudyFile, content, file)
            elif isinstance(content, dict) and "trace" in content:
                searches[file.stem] = _checked(SearchFile, content, file)
            elif file not in trials.values():
                unknown.append(file.name)
        kept = {group: KeptTrials.open(file) for group, file in trials.items()}
        return cls(studies, searches, kept, tuple(unknown))


def _content(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(file, f"{type(error).__name__}: {error}") from error


def _checked(kind: type[_Kind], content: dict[str, Any], file: Path) -> _Kind:
    try:
        return kind.model_validate(content)
    except (ValidationError, RecursionError) as error:
        first = (
            error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": "it is nested too deeply"}
        )
        raise _damaged(file, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _damaged(file: Path, reason: str) -> InvalidArgument:
    fix = f"Restore it, or move it away and run `python -m reproduction run {file.stem}`"
    return InvalidArgument("results", str(file), f"it is no file of results ({reason})", fix)
