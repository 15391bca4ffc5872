"""A study: several experiments under one title, such as all cells of a published table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apportion import validate
from apportion.compare.defaults import with_benchmark_budget
from apportion.compare.experiment import read_file, validated
from apportion.errors import InvalidArgument
from reproduction.study.paper_experiment import Cell, PaperExperiment

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
_TEXTS = ("title", "source", "note")


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
    experiments: tuple[PaperExperiment, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every run: experiments in order, their recipes in order, and seeds."""
        return tuple(cell for one in self.experiments for cell in one.cells())


def study_names() -> list[str]:
    """Of all studies in `experiments/`."""
    return sorted(path.stem for path in EXPERIMENTS.glob("*.toml"))


def open_study(name: str) -> Study:
    """A study by its name, or by the path of its TOML file."""
    if Path(name).is_file() or name.endswith(".toml"):
        path = Path(name)
    else:
        reason = "there is no such file and no such study"
        path = EXPERIMENTS / f"{validate.known('study', name, study_names(), reason)}.toml"
    return read_study(path.stem, read_file(path))


def read_study(name: str, values: dict[str, Any]) -> Study:
    """Validate the content of a file. Settings at its top are those of every experiment that does not set them itself."""
    entries = values.get("experiment")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidArgument(
            "experiment", validate.shown(entries), "it is not a list of tables", "Write [[experiment]]"
        )
    known = {*_TEXTS, "experiment", *PaperExperiment.model_fields}
    for key in values:
        validate.known(key, key, known, "there is no such setting")
    shared = {key: value for key, value in values.items() if key not in (*_TEXTS, "experiment")}
    experiments = tuple(_experiment(number, shared, entry) for number, entry in enumerate(entries, start=1))
    labels = [one.shown for one in experiments]
    if twice := sorted({one for one in labels if labels.count(one) > 1}):
        raise InvalidArgument(
            "experiment", twice, "two have the same label, and their results would be mixed up", "Give each its label"
        )
    texts = {key: str(values.get(key, "")) for key in _TEXTS}
    return Study(name, texts["title"] or name, texts["source"], texts["note"], experiments)


def _experiment(number: int, shared: dict[str, Any], own: dict[str, Any]) -> PaperExperiment:
    merged = dict(shared)
    for one, other in (("steps", "epochs"), ("sample_rate", "batch_size")):
        if one in own or other in own:
            merged.pop(one, None)
            merged.pop(other, None)
    merged |= own
    if "data" not in merged:
        raise InvalidArgument("data", None, f"experiment {number} names no data", 'Write data = "mnist"')
    found = validated(PaperExperiment, with_benchmark_budget(merged))
    found.check()
    return found
