"""The result of a run as a value, and the files that keep results (version 1).

`results.json` of a comparison and `<study>.json` of a table have the same form: facts about the whole, and a list of runs. Reading
validates the form once; after that there are only attributes. A field whose value cannot be what it says, such as an ε that is not a
number, counts as missing. A key that has no field of its own is kept in `details`, and written back as it was.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from apportion.errors import InvalidArgument

VERSION = 1
FILE = "results.json"

Values = Mapping[str, Any]
_Scored = TypeVar("_Scored", bound="HistoryEntry | RunResult")
_Kind = TypeVar("_Kind", bound="HistoryEntry | RunResult | NotRun | Results")


def as_number(value: Any) -> float | None:
    """Return `value` as a finite float, otherwise None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:  # an integer beyond all floats
        return None
    return found if math.isfinite(found) else None


def as_share(value: Any) -> float | None:
    """Return `value` if it is a number from 0 to 1, otherwise None: nothing else is an accuracy."""
    found = as_number(value)
    return found if found is not None and 0 <= found <= 1 else None


def _as_whole(value: Any) -> int | None:
    found = as_number(value)
    return int(found) if found is not None and found == int(found) else None


def _as_text(value: Any) -> str | None:
    return None if value is None else str(value)


def _as_numbers(value: Any) -> tuple[float, ...]:
    values = value if isinstance(value, (list, tuple)) else (value,)
    return tuple(found for one in values if (found := as_number(one)) is not None)


def _read_by(convert: Callable[[Any], Any], default: Any = None) -> Any:
    """A field that is read from JSON by `convert`."""
    return field(default=default, metadata={"convert": convert})


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One step of a run.

    Args:
        step: 1-based.
        epsilon: spent up to and including this step, where it was computed.
        clip: the threshold of each group of parameters; one for all of them is a tuple of one.
        noise_multiplier: z_t.
        test_accuracy: where the model was evaluated.
        details: everything else that was kept of the step, such as its learning rate.
    """

    step: int = _read_by(_as_whole)
    epsilon: float | None = _read_by(as_number)
    clip: tuple[float, ...] = _read_by(_as_numbers, ())
    noise_multiplier: float | None = _read_by(as_number)
    test_accuracy: float | None = _read_by(as_share)
    details: Values = field(default_factory=dict)

    def score(self, metric: str) -> float | None:
        """What was measured by `metric`."""
        return _score(self, metric)

    def with_score(self, metric: str, score: float | None) -> HistoryEntry:
        """The entry with what was measured."""
        return _with_score(self, metric, score)

    def to_json(self) -> dict[str, Any]:
        """As it stands in files: a single threshold instead of a list of one; the score under its name, as `test_accuracy`."""
        clip = None if not self.clip else self.clip[0] if len(self.clip) == 1 else list(self.clip)
        return _written(self) | {"clip": clip}


@dataclass(frozen=True)
class RunResult:
    """What came of one run: of a private one, or of training without privacy, which has no ε.

    Args:
        recipe: what the run is called wherever it is shown.
        epsilon: the guarantee: the price of the whole plan, with the spare steps.
        epsilon_spent: the price of the steps that were taken, where it is kept apart.
        steps, draws: updates of the weights, and questions that were asked of the records for them.
        target_epsilon: the budget that was asked for.
        private: False if a seed made the noise predictable; ε is then what the same run would spend with secret noise.
        experiment: what makes runs comparable, where a person said so; `control_of` names the recipe that this one is a control of, and
            `paper_accuracy`, `paper_accuracy_std` and `paper_epsilon` are what the source printed.
        details: everything else that was kept of the run: its settings, and what it was computed with.
    """

    recipe: str = _read_by(str, "run")
    data: str | None = _read_by(_as_text)
    model: str | None = _read_by(_as_text)
    seed: int | None = _read_by(_as_whole)
    epsilon: float | None = _read_by(as_number)
    target_epsilon: float | None = _read_by(as_number)
    delta: float | None = _read_by(as_number)
    unit: str | None = _read_by(_as_text)
    neighbours: str | None = _read_by(_as_text)
    accountant: str | None = _read_by(_as_text)
    private: bool | None = _read_by(lambda value: value if isinstance(value, bool) else None)
    statement: str | None = _read_by(_as_text)
    test_accuracy: float | None = _read_by(as_share)
    steps: int | None = _read_by(_as_whole)
    draws: int | None = _read_by(_as_whole)
    seconds: float | None = _read_by(as_number)
    population: int | None = _read_by(_as_whole)
    sample_rate: float | None = _read_by(as_number)
    expected_batch_size: float | None = _read_by(as_number)
    epsilon_spent: float | None = _read_by(as_number)
    experiment: str | None = _read_by(_as_text)
    control_of: str | None = _read_by(_as_text)
    paper_accuracy: float | None = _read_by(as_share)
    paper_accuracy_std: float | None = _read_by(as_number)
    paper_epsilon: float | None = _read_by(as_number)
    details: Values = field(default_factory=dict)
    history: tuple[HistoryEntry, ...] = ()

    @property
    def metric(self) -> str:
        """What its score is: "accuracy", or what the details call it."""
        return str(self.details.get("metric") or "accuracy")

    @property
    def score(self) -> float | None:
        """What was measured in the end, or the last one of its history."""
        measured = (entry.score(self.metric) for entry in reversed(self.history))
        return next((one for one in (_score(self, self.metric), *measured) if one is not None), None)

    def with_score(self, score: float | None) -> RunResult:
        """The run with its score under the name of its metric."""
        return _with_score(self, self.metric, score)

    @classmethod
    def from_json(cls, values: Any, place: str = "run") -> RunResult:
        """Validate one run; `place` is what an error calls it."""
        if not isinstance(values, Mapping) or values.get("recipe") is None:
            raise _refused(values, f"{place} is not an object with a 'recipe'")
        entries = values.get("history") or ()
        if not isinstance(entries, Sequence) or not all(isinstance(entry, Mapping) for entry in entries):
            raise _refused(values, f"{place}['history'] is not a list of objects")
        history = tuple(_read(HistoryEntry, entry) for entry in entries)
        if any(entry.step is None for entry in history):
            raise _refused(values, f"{place}['history'] has an entry without the number of its 'step'")
        return _read(cls, values, history=history)

    def to_json(self, *, history: bool = True) -> dict[str, Any]:
        """As it stands in files. What only studies have is written for runs of studies alone, and there also where it is missing."""
        values = _written(self)
        left_out = [] if self.experiment is not None else [name for name in values if name in _OF_STUDIES]
        left_out += [] if self.epsilon_spent is not None else ["epsilon_spent"]
        kept = {name: value for name, value in values.items() if name not in left_out}
        return kept | ({"history": [entry.to_json() for entry in self.history]} if history else {})


_OF_STUDIES = ("experiment", "control_of", "paper_accuracy", "paper_accuracy_std", "paper_epsilon")


@dataclass(frozen=True)
class NotRun:
    """What was asked for and has no run, with the reason."""

    recipe: str = _read_by(lambda value: _as_text(value) or "", "")
    reason: str = _read_by(lambda value: _as_text(value) or "", "")
    experiment: str | None = _read_by(_as_text)
    details: Values = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return _without_missing(self)


def _read_not_run(entries: Any) -> tuple[NotRun, ...] | None:
    if not isinstance(entries, Iterable):
        return None
    return tuple(_read(NotRun, entry) for entry in entries if isinstance(entry, Mapping))


@dataclass(frozen=True)
class Results:
    """Several runs, and what there is to say about all of them.

    Args:
        not_run: what a study left out; None where nobody asked.
        skipped: recipes of a comparison that were refused for this model or these settings.
        details: everything else that was kept, such as means over seeds and the versions that the runs depend on.
    """

    runs: tuple[RunResult, ...]
    title: str | None = _read_by(_as_text)
    name: str | None = _read_by(_as_text)
    source: str | None = _read_by(_as_text)
    note: str | None = _read_by(_as_text)
    created: str | None = _read_by(_as_text)
    not_run: tuple[NotRun, ...] | None = _read_by(_read_not_run)
    skipped: tuple[NotRun, ...] | None = _read_by(_read_not_run)
    details: Values = field(default_factory=dict)

    @classmethod
    def from_json(cls, values: Any) -> Results:
        """Validate the content of a file; the first problem becomes one clear line."""
        if not isinstance(values, Mapping):
            raise _refused(values, "the results must be one JSON object")
        if (version := values.get("version", VERSION)) != VERSION:
            raise _refused(values, f"its version is {version!r} and this release of Apportion reads version {VERSION}")
        runs = values.get("runs")
        if not isinstance(runs, Sequence) or isinstance(runs, str):
            raise _refused(values, "it has no list of 'runs'")
        read = tuple(RunResult.from_json(run, f"runs[{place}]") for place, run in enumerate(runs))
        found = _read(cls, {name: value for name, value in values.items() if name != "version"}, runs=read)
        if not runs:
            left_out = (*(found.not_run or ()), *(found.skipped or ()))
            reasons = "; ".join(dict.fromkeys(entry.reason for entry in left_out))
            raise _refused(values, "no 'runs': nothing of it was run" + (f" ({reasons})" if reasons else ""))
        return found

    def to_json(self, *, history: bool = True) -> dict[str, Any]:
        """The content of a file."""
        lists = {"runs": [run.to_json(history=history) for run in self.runs]}
        for name, left_out in (("not_run", self.not_run), ("skipped", self.skipped)):
            lists |= {} if left_out is None else {name: [one.to_json() for one in left_out]}
        return {"version": VERSION} | _without_missing(self) | lists


def read_results(path: Path | str) -> Results:
    """Read the results of a comparison or of a table: a file, or the results.json in a folder."""
    file = Path(path)
    if file.is_dir():
        file = file / FILE
    content = read_json(file, f"Pass a {FILE} or a folder that holds one; `apportion compare` writes it")
    try:
        return Results.from_json(content)
    except InvalidArgument as error:
        fix = "Run `apportion compare` to write a fresh one, or name another"
        raise InvalidArgument("path", str(file), error.reason, fix) from None


def read_json(file: Path, fix: str) -> Any:
    """The content of a JSON file; `fix` says what to do if there is no such file."""
    if file.exists() and not file.is_file():  # a device has no end
        raise InvalidArgument("path", str(file), "it is not a file", fix)
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidArgument("path", str(file), "there is no such file", fix) from None
    except OSError as error:
        reason = f"it cannot be read ({error.strerror})"
        raise InvalidArgument("path", str(file), reason, "Check its permissions") from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument("path", str(file), f"it is not valid JSON ({error})", "Name another file") from None


def _score(one: HistoryEntry | RunResult, metric: str) -> float | None:
    """Accuracy has a field; another metric is kept under its name."""
    return one.test_accuracy if metric == "accuracy" else as_number(one.details.get(f"test_{metric}"))


def _with_score(one: _Scored, metric: str, score: float | None) -> _Scored:
    if metric == "accuracy":
        return replace(one, test_accuracy=score)
    return replace(one, details={**one.details, f"test_{metric}": score})


def _read(kind: type[_Kind], values: Values, **more: Any) -> _Kind:
    """Each field by its own converter; keys without a field are kept."""
    converters = {one.name: one.metadata["convert"] for one in fields(kind) if "convert" in one.metadata}
    known = {name: convert(values.get(name)) for name, convert in converters.items()}
    rest = {str(name): value for name, value in values.items() if name not in known and name not in more}
    return kind(**known, **more, details=rest)


def _written(value: HistoryEntry | RunResult | NotRun | Results) -> dict[str, Any]:
    """Each field that has a converter, and then the details."""
    return {one.name: getattr(value, one.name) for one in fields(value) if "convert" in one.metadata} | dict(
        value.details
    )


def _without_missing(value: NotRun | Results) -> dict[str, Any]:
    """As `_written`, without the fields that have no value."""
    return {name: one for name, one in _written(value).items() if one is not None or name in value.details}


def _refused(values: Any, reason: str) -> InvalidArgument:
    shown = sorted(map(str, values)) if isinstance(values, Mapping) else type(values).__name__
    return InvalidArgument("results", shown, reason, "Pass results as a comparison returns or writes them")
