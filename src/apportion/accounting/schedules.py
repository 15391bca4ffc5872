"""Read a schedule of steps from a file, so that runs of other libraries can be priced too.

CSV   a header with sample_rate, noise_multiplier and, if rows stand for several steps, count
JSON  a list of objects with the same names, or of [noise_multiplier, sample_rate, steps] as in Opacus's `accountant.history`;
      or Opacus's `accountant.state_dict()`, which holds that list under "history"

What was executed must have been Poisson sampling with noise of standard deviation noise_multiplier × clip. No file can show that.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from apportion import validate
from apportion.errors import InvalidArgument
from apportion.event import Event

Schedule = Counter[Event]

_NEEDED = ("sample_rate", "noise_multiplier")
_COLUMNS = (*_NEEDED, "count")
_OPACUS = ("noise_multiplier", "sample_rate", "count")  # the order of an entry of Opacus's history


def read_schedule(path: str | Path) -> Schedule:
    """The events of a .csv or .json file, each with how often it occurs."""
    path = Path(path)
    read = {".csv": _from_csv, ".json": _from_json}.get(path.suffix.lower())
    if read is None:  # before anything is read: a device has no end
        raise InvalidArgument("schedule", str(path), "its name ends in neither .csv nor .json", "Rename it")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidArgument(
            "schedule", str(path), f"it cannot be read: {error.strerror}", "Name a .csv or .json file"
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            "schedule", str(path), "it is not a text file in UTF-8", "Save it as CSV or JSON"
        ) from error
    schedule = read(text, path.name)
    if not schedule:
        raise InvalidArgument("schedule", str(path), "it holds no steps", "Write one row for each kind of step")
    return schedule


def schedule_from_history(history: Sequence[Any], where: str = "history") -> Schedule:
    """The events of Opacus's `accountant.history`: entries (noise_multiplier, sample_rate, steps)."""
    if not isinstance(history, Sequence) or isinstance(history, (str, bytes)):
        raise InvalidArgument(where, validate.shown(history), "it is not a list of steps", "Pass accountant.history")
    schedule: Schedule = Counter()
    for number, entry in enumerate(history, start=1):
        place = f"{where}, entry {number}"
        if isinstance(entry, dict):
            for name in entry:
                validate.known(f"{place}, name", name, _COLUMNS)
            _require(entry, place)
            fields = entry
        elif isinstance(entry, Sequence) and not isinstance(entry, str) and len(entry) == len(_OPACUS):
            fields = dict(zip(_OPACUS, entry, strict=True))
        else:
            raise InvalidArgument(
                place, entry, "it is not a step", "Write [noise_multiplier, sample_rate, steps], or an object"
            )
        _add(schedule, fields, place)
    return schedule


def _from_json(text: str, name: str) -> Schedule:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        place = f", line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise InvalidArgument("schedule", f"{name}{place}", f"it is not JSON: {reason}", "Correct the file") from error
    if isinstance(content, dict):
        if "history" not in content:
            raise InvalidArgument(
                "schedule", name, f"an object without 'history' (it has {sorted(content)})", "Write a list of steps"
            )
        content = content["history"]
    if not isinstance(content, list):
        raise InvalidArgument("schedule", name, f"a list of steps is needed, not {content!r:.40}", "Write [...]")
    return schedule_from_history(content, name)


def _from_csv(text: str, name: str) -> Schedule:
    rows = csv.reader(io.StringIO(text), skipinitialspace=True, strict=True)
    schedule: Schedule = Counter()
    try:
        header = [column.strip() for column in next(rows, [])]
        for column in header:
            validate.known(f"{name}, line 1, column", column, _COLUMNS, "there is no such column")
        _require(header, f"{name}, line 1")
        if len(set(header)) < len(header):
            raise InvalidArgument(f"{name}, line 1", header, "a column stands there twice", "Keep one of them")
        for row in rows:
            place = f"{name}, line {rows.line_num}"
            if not any(field.strip() for field in row):
                continue
            if len(row) != len(header):
                raise InvalidArgument(place, row, f"{len(header)} fields are needed", "Correct the line")
            fields = {
                column: _number(field, f"{place}, column {column}") for column, field in zip(header, row, strict=True)
            }
            _add(schedule, fields, place)
    except csv.Error as error:
        raise InvalidArgument(
            "schedule", f"{name}, line {rows.line_num}", f"it is not CSV: {error}", "Correct the file"
        ) from error
    return schedule


def _require(names: Sequence[str] | dict[str, Any], place: str) -> None:
    for name in _NEEDED:
        if name not in names:
            raise InvalidArgument(place, list(names), f"{name} is missing", f"Needed: {', '.join(_COLUMNS)}")


def _number(text: str, place: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InvalidArgument(place, text, "a number is needed", "Correct the file") from error


def _add(schedule: Schedule, fields: dict[str, Any], place: str) -> None:
    """One row or entry; what is wrong with it is told with the place where it stands."""
    try:
        event = Event(fields["sample_rate"], fields["noise_multiplier"])
        count = validate.whole("count", fields.get("count", 1), "it is a number of steps", "Correct the file")
    except InvalidArgument as error:
        raise InvalidArgument(
            f"{place}, column {error.argument}", error.value, error.reason, "Correct the file"
        ) from error
    schedule[event] += count
