"""A study: several experiments under one title, such as all cells of a published table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from apportion import validate
from apportion.compare.defaults import with_benchmark_budget
from apportion.compare.experiment import STUDY_KEYS, Experiment, experiment
from apportion.errors import InvalidArgument
from reproduction.study.cell import Cell


@dataclass(frozen=True)
class Study:
    """What a file with `[[experiment]]` says.

    Args:
        name: of the results file; the stem of the study's file.
        title, source, note: for people: what it is, where the published figures stand, what must be known to read ours.
        experiments: each with a label of its own.
    """

    name: str
    title: str
    source: str
    note: str
    experiments: tuple[Experiment, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every run: experiments in order, their recipes in order, and seeds."""
        return tuple(
            Cell(one, choice, seed) for one in self.experiments for choice in one.recipe for seed in _seeds(one, choice)
        )


def is_study(values: dict[str, Any]) -> bool:
    """Whether a file holds a study and not a single comparison."""
    return "experiment" in values


def study(name: str, values: dict[str, Any]) -> Study:
    """Validate the content of a file. Settings at its top are those of every experiment that says nothing else."""
    entries = values["experiment"]
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidArgument(
            "experiment", validate.shown(entries), "it is not a list of tables", "Write [[experiment]]"
        )
    shared = {key: value for key, value in values.items() if key not in STUDY_KEYS}
    experiments = []
    for number, entry in enumerate(entries):
        merged = _merged(shared, entry)
        if "data" not in merged:
            raise InvalidArgument("data", None, f"experiment {number + 1} names no data", 'Write data = "mnist"')
        one = experiment(with_benchmark_budget(merged))
        one.check()
        experiments.append(one)
    labels = [label(one) for one in experiments]
    if twice := sorted({one for one in labels if labels.count(one) > 1}):
        raise InvalidArgument(
            "experiment", twice, "two have the same label, and their results would be mixed up", "Give each its label"
        )
    texts = {key: str(values.get(key, "")) for key in ("title", "source", "note")}
    return Study(name, texts["title"] or name, texts["source"], texts["note"], tuple(experiments))


def label(one: Experiment) -> str:
    """What an experiment is called: its label, or data and budget."""
    return one.label or (one.data if one.epsilon is None else f"{one.data}, ε = {one.epsilon:g}")


def _merged(shared: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    merged = dict(shared)
    for one, other in (("steps", "epochs"), ("sample_rate", "batch_size")):
        if one in own or other in own:
            merged.pop(one, None)
            merged.pop(other, None)
    return merged | own


def _seeds(one: Experiment, choice: Any) -> tuple[int | None, ...]:
    if one.kind == "price":
        return (None,)
    seeds: tuple[int, ...] = one.seeds if choice.seeds is None else choice.seeds
    if not seeds:
        raise InvalidArgument(
            "seeds", (), f"the results of {label(one)} are kept, so they must be reproducible", "Write seeds = [1, 2]"
        )
    return seeds
