"""From a table to what a model is trained on: inputs in [0, 1] and targets, each record by itself, as the schema says."""

from __future__ import annotations

import json
import warnings
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion import validate
from apportion.errors import InvalidArgument
from apportion.tables.cells import (
    EMPTY,
    NOT_A_NUMBER,
    OUT_OF_RANGE,
    UNKNOWN,
    cell_encoder,
    numeric_value,
    target_encoder,
)
from apportion.tables.schema import Column, Schema, require_schema
from apportion.tables.table_files import Row, Table, Wanted, open_table

FILE = Path("public") / "encoding.json"
"""Where a run folder keeps how tables are encoded for its model."""
BROKEN_ROW = "a row with another number of fields than the header"
BROKEN_CELLS = "a record none of whose numbers, or none of whose inputs, can be read"
"""Such a record would be learned from made-up inputs; it is not usable, so that the noisy count of usable records tells of them."""
_FORMAT = 1
_SEPARATOR = "\x1f"

Floats = NDArray[np.float32]
Targets = NDArray[np.int64] | NDArray[np.float32]


@dataclass(frozen=True, eq=False, repr=False)
class EncodedTable:
    """The records of a table. All of it is as private as they are.

    Args:
        inputs: one row for each record, all numbers in [0, 1].
        targets: class numbers, −1 for no class; or numbers in [0, 1] in one column, NaN for none. `None` where no targets were asked for.
        names: what names each record: its id, or otherwise its contents.
        owners: whose each record is, by the schema's unit column; `None` for a record that does not say, and without such a column.
        broken: the records that could not be read at all.
        problems: how many cells broke the schema, by column and kind. Exact counts: for the owner of the data alone.
    """

    inputs: Floats
    targets: Targets | None
    names: tuple[str, ...]
    owners: tuple[str | None, ...] | None
    broken: NDArray[np.bool_]
    problems: Mapping[str, int]

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Which records have a target of the declared ones."""
        assert self.targets is not None
        return np.isfinite(self.targets[:, 0]) if self.targets.ndim == 2 else self.targets >= 0

    def part(self, chosen: NDArray[np.bool_]) -> EncodedTable:
        """Some of the records. Problems are those of all."""
        places = np.flatnonzero(chosen)
        return EncodedTable(
            self.inputs[chosen],
            None if self.targets is None else self.targets[chosen],
            tuple(self.names[place] for place in places),
            None if self.owners is None else tuple(self.owners[place] for place in places),
            self.broken[chosen],
            self.problems,
        )

    def or_unusable(self) -> EncodedTable:
        """These records; if there are none, one that contributes nothing: whether there is any must not be seen."""
        if len(self.inputs):
            return self
        targets = self.targets
        if targets is not None:
            targets = np.full((1, *targets.shape[1:]), -1 if targets.dtype == np.int64 else np.nan, dtype=targets.dtype)
        nothing = np.zeros((1, self.inputs.shape[1]), dtype=np.float32)
        owners = None if self.owners is None else ("nobody",)
        return EncodedTable(nothing, targets, ("",), owners, np.array([True]), self.problems)


@dataclass(frozen=True)
class Encoding:
    """How tables are encoded for a model: a schema, and which of its columns is the target. Public, and saved with the model.

    Args:
        schema: a `Schema`, or the path of its TOML file.
        target: the column to be predicted: a class if it has categories, a number if it has a range. A number is scaled to [0, 1]. A
            record without a target is not used, whatever `missing` says.

    Guarantee: what becomes of a record depends on that record and the schema alone, and no record raises an error.

    Examples:
        >>> import apportion as ap
        >>> schema = ap.tables.Schema({"age": {"range": (0, 100)}, "ill": {"categories": ["no", "yes"]}})
        >>> encoding = ap.tables.Encoding(schema, target="ill")
        >>> encoding.width, encoding.classes
        (1, ('no', 'yes'))
    """

    schema: Schema
    target: str

    def __post_init__(self) -> None:
        validate.store(self, schema=require_schema(self.schema))
        columns = self.schema.columns
        validate.known("target", self.target, columns, "the schema has no such column")
        if self.classes is not None and len(self.classes) < 2:
            raise InvalidArgument("target", self.target, "it has a single category", "Declare two or more")
        if len(columns) < 2:
            raise InvalidArgument("target", self.target, "the schema has no other column to predict it from", "Add one")
        for name in self.schema.weights:
            if self.classes is None:
                reason = "classes have weights, and the target is a number"
                raise InvalidArgument("schema.loss.weights", dict(self.schema.weights), reason, "Leave them out")
            validate.known("schema.loss.weights", name, self.classes, "the target has no such category")

    @property
    def inputs(self) -> dict[str, Column]:
        """The columns that are not the target."""
        return {name: column for name, column in self.schema.columns.items() if name != self.target}

    @property
    def width(self) -> int:
        """How many inputs a record has."""
        return sum(column.width for column in self.inputs.values())

    @property
    def numbers(self) -> tuple[int, ...]:
        """Which inputs are numbers of a range; the others are parts of a category, or say that a value is missing."""
        found, place = [], 0
        for column in self.inputs.values():
            found += [place] if column.range is not None else []
            place += column.width
        return tuple(found)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The categories of the target; `None` if it is a number."""
        return self.schema.columns[self.target].categories

    @property
    def outputs(self) -> int:
        """How many outputs a model needs: one for each class, or one for a number."""
        return 1 if self.classes is None else len(self.classes)

    @property
    def _named(self) -> tuple[str, ...]:
        """The columns that say whose a record is and which it is."""
        return tuple(dict.fromkeys(name for name in (self.schema.unit, self.schema.id) if name is not None))

    def _numbers(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of the columns that are declared by a range."""
        return tuple(name for name in names if self.schema.columns[name].range is not None)

    @property
    def class_weights(self) -> tuple[float, ...] | None:
        """The declared weights of the classes; `None` if there are none."""
        if not self.schema.weights:
            return None
        return tuple(self.schema.weights.get(name, 1.0) for name in self.classes or ())

    @property
    def span(self) -> float:
        """The width of the declared range of a number; 1 for classes."""
        low, high = self.schema.columns[self.target].range or (0.0, 1.0)
        return high - low

    def to_number(self, scaled: NDArray[Any]) -> NDArray[np.float64]:
        """A predicted number back from [0, 1] to the declared range."""
        low, _ = self.schema.columns[self.target].range or (0.0, 1.0)
        return low + self.span * np.asarray(scaled, dtype=np.float64)

    def read(self, source: Any, argument: str = "data") -> EncodedTable:
        """The records of a private table, to be trained on: a path, or a pandas or polars frame.

        Raises:
            InvalidArgument: for the header and the format alone, whatever the records hold.
        """
        names = (*self.inputs, self.target)
        wanted = Wanted((*names, *self._named), self.schema.ignore, self._named, self._numbers(names))
        return self._encode(open_table(argument, source, wanted, self.schema.form)).or_unusable()

    def read_inputs(self, source: Any, argument: str = "data") -> EncodedTable:
        """The records of a table without targets, to be predicted. Target, unit and id may be there."""
        names = tuple(self.inputs)
        wanted = Wanted(names, (self.target, *self._named, *self.schema.ignore), numbers=self._numbers(names))
        return _require_records(self._encode(open_table(argument, source, wanted, self.schema.form)), argument, source)

    def read_public(self, source: Any, argument: str = "test") -> EncodedTable:
        """The records of a table that is declared public: a value that breaks the schema is refused, with its place.

        A number outside of the range of an input is moved to its end, as in training, with a warning that says how many there were.
        """
        names = (*self.inputs, self.target)
        wanted = Wanted(names, (*self._named, *self.schema.ignore), numbers=self._numbers(names))
        table = open_table(argument, source, wanted, self.schema.form)
        found = _require_records(self._encode(table, public=argument), argument, source)
        if found.problems:
            moved = ", ".join(f"{count} of {kind.partition(':')[0]!r}" for kind, count in found.problems.items())
            warnings.warn(
                f"{argument}={table.name!r}: values out of range were moved to its ends: {moved}", stacklevel=2
            )
        return found

    def _encode(self, table: Table, *, public: str | None = None) -> EncodedTable:
        """Encode the records. Of a table that is declared public, under the name that errors call it, wrong values are refused."""
        parts = _Parts(self, table.header)
        for record, row in enumerate(table.rows, start=1):
            faults = parts.add(row)
            wrong = [one for one in faults if one[1] != OUT_OF_RANGE or one[0] == self.target]
            if public is not None and wrong:
                column, kind = wrong[0]
                said = kind if column is None else f"the value of {column!r} is {kind}"
                reason = f"it is declared public, and in record {record} {said}"
                raise InvalidArgument(public, table.name, reason, "Correct the file, or the schema")
        return parts.finish()

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for a file."""
        return {"format": _FORMAT, "target": self.target, "schema": self.schema.to_dict()}

    def save(self, folder: Path | str, **more: Any) -> Path:
        """Write it into a run folder, for `apportion.load` and `apportion predict`.

        Args:
            more: what else is public about the model, such as its name.
        """
        from apportion.training.checkpoint import replace_file

        path = Path(folder) / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, (json.dumps(self.to_dict() | more, indent=1, ensure_ascii=False) + "\n").encode())
        return path


def read_encoding(folder: Path | str) -> tuple[Encoding, dict[str, Any]]:
    """The encoding in a run folder, and what else was saved with it."""
    path = Path(folder) / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        schema, target = content.pop("schema"), content.pop("target")
        if content.pop("format") != _FORMAT:
            raise ValueError("it has another format")
        return Encoding(Schema.from_dict(schema), target), content
    except OSError:
        reason = f"it holds no {FILE}, which says how tables are encoded for its model"
        fix = "Name the folder of a run of `apportion train --schema`, or save it there: Encoding.save(folder)"
        raise InvalidArgument("run", str(folder), reason, fix) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        line = (str(error).splitlines() or [""])[0]
        raise InvalidArgument("run", str(path), f"it is damaged: {line}", "Restore it from a backup") from None


def _require_records(found: EncodedTable, argument: str, source: Any) -> EncodedTable:
    """Refuse a table without any: not of private records to be trained on, where one of them must not be seen."""
    if not len(found.inputs):
        shown = str(source) if isinstance(source, (str, Path)) else type(source).__name__
        raise InvalidArgument(argument, shown, "it has a header and no records", "Name another file")
    return found


class _Parts:
    """The records of a table, one after the other."""

    def __init__(self, encoding: Encoding, header: tuple[str, ...]):
        self._encoding, places = encoding, {name: place for place, name in enumerate(header)}
        decimal = encoding.schema.decimal
        self._cells = [(name, places[name], cell_encoder(column, decimal)) for name, column in encoding.inputs.items()]
        self._numbers = sum(column.range is not None for column in encoding.inputs.values())
        self._target = places.get(encoding.target)
        self._encode_target = target_encoder(encoding.schema.columns[encoding.target], decimal)
        self._unit, self._id = (places.get(name or "") for name in (encoding.schema.unit, encoding.schema.id))
        self._contents = [places[name] for name in encoding.schema.columns if name in places]
        self._inputs, self._targets = array("f"), array("d")
        self._owners: list[str | None] = []
        self._broken: list[bool] = []
        self._problems: Counter[str] = Counter()
        self._empty: Row = ("",) * len(header)
        self.names: list[str] = []

    def add(self, row: Row) -> list[tuple[str | None, str]]:
        """Encode a record; returns what is wrong with it, by column. A broken one has no values."""
        faults: list[tuple[str | None, str]] = [] if row is not None else [(None, BROKEN_ROW)]
        texts = row or self._empty or ()
        for name, place, encode in self._cells:
            numbers, fault = encode(texts[place])
            self._inputs.extend(numbers)
            if fault is not None and row is not None:
                faults.append((name, fault))
        unreadable = self._is_unreadable([kind for _, kind in faults])
        if self._target is not None:
            number, fault = self._encode_target("" if unreadable else texts[self._target])
            self._targets.append(number)
            if fault is not None and row is not None and not unreadable:
                faults.append((self._encoding.target, fault))
        if unreadable:
            faults.append((None, BROKEN_CELLS))
        self._name(texts)
        self._broken.append(row is None or unreadable)
        for column, kind in faults:
            self._problems[kind if column is None else f"{column}: {kind}"] += 1
        return faults

    def _is_unreadable(self, kinds: list[str]) -> bool:
        """Whether none of the numbers of a record is one, or none of its inputs is anything that was declared."""
        not_numbers, unknown = kinds.count(NOT_A_NUMBER), kinds.count(UNKNOWN)
        return 0 < self._numbers == not_numbers or not_numbers + unknown == len(self._cells)

    def _name(self, texts: tuple[str, ...]) -> None:
        own = "" if self._id is None else _present(texts[self._id])
        contents = (_canonical(_present(texts[place])) for place in self._contents)
        self.names.append(f"id {own}" if own else "is " + _SEPARATOR.join(contents))
        if self._unit is not None:
            self._owners.append(_present(texts[self._unit]) or None)

    def finish(self) -> EncodedTable:
        """All records."""
        targets: Targets | None = None
        if self._target is not None:
            found = np.frombuffer(self._targets, dtype=np.float64)
            if self._encoding.classes is None:
                targets = found.astype(np.float32)[:, None]
            else:
                targets = found.astype(np.int64)
        inputs = np.frombuffer(self._inputs, dtype=np.float32).reshape(-1, self._encoding.width).copy()
        owners = None if self._unit is None else tuple(self._owners)
        return EncodedTable(
            inputs,
            targets,
            tuple(self.names),
            owners,
            np.array(self._broken, dtype=bool),
            dict(sorted(self._problems.items())),
        )


def _present(text: str) -> str:
    """The text, or none for all that stand for no value: which of them a library writes may depend on other records."""
    return "" if text.lower() in EMPTY else text


def _canonical(text: str) -> str:
    """A number in one form, whatever type a library gave to its column because of other records."""
    number = numeric_value(text)
    return text if number is None else repr(number)


def records(data: Any, schema: Schema | Path | str, *, target: str) -> tuple[Floats, Targets]:
    """(inputs, targets) of a private table, for `apportion.train`: each record encoded by itself, as the schema says.

    | value | input | target |
    |---|---|---|
    | a number x in range | (x − low)/(high − low) | the same |
    | one outside of it | 0 or 1, the closer end | not usable: NaN |
    | a declared category | a vector with a single 1 | its number |
    | any other text | a vector of zeros | not usable: class −1 |
    | none, NaN, or no number | the middle of the range, or zeros; with `missing` also a 1 | not usable |

    A record none of whose numbers is one, or all of whose inputs are no numbers or unknown categories, is not usable either.
    Such a record, and one whose target is not usable, contributes nothing. Nothing is said about them: `Encoding.read` counts them, for the
    owner of the data.

    Args:
        data: the path of a CSV or Parquet file, or a pandas or polars frame. A record of a CSV file is a line.
        schema: a `Schema`, or the path of its TOML file.
        target: the column to be predicted.

    Returns:
        NumPy arrays: float32 (records, inputs), and int64 class numbers, or float32 (records, 1).

    Examples:
        >>> import apportion as ap
        >>> import pandas
        >>> frame = pandas.DataFrame({"age": [20, 60, None], "ill": ["no", "yes", "perhaps"]})
        >>> schema = ap.tables.Schema({"age": {"range": (0, 100), "missing": True}, "ill": {"categories": ["no", "yes"]}})
        >>> inputs, targets = ap.tables.records(frame, schema, target="ill")
        >>> inputs.tolist(), targets.tolist()
        ([[0.20000000298023224, 0.0], [0.6000000238418579, 0.0], [0.5, 1.0]], [0, 1, -1])
    """
    encoding = Encoding(require_schema(schema), target)
    found = encoding.read(data)
    assert found.targets is not None
    return found.inputs, found.targets
