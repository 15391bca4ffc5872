"""What the columns of a table may hold, declared in a file or in Python: never read from the private records.

unit = "patient"                     # whose each record is, for a guarantee for users
decimal = ","                        # 3,5 instead of 3.5
encoding = "latin-1"                 # of a CSV file that is not UTF-8
id = "visit"                         # names a record, to decide whether it is held out; otherwise its contents do
ignore = ["remarks"]                 # columns of the file that are not used
loss.weights = { ill = 4, well = 1 } # of the classes of the target, where they are not equally frequent

[columns.age]
range = [18, 90]
[columns.sex]
categories = ["M", "F"]
[columns.dose]
range = [0, 10]
missing = true                       # the model is told whether there is a value
[columns.outcome]
categories = ["ill", "well"]
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from apportion import validate
from apportion.errors import InvalidArgument
from apportion.tables.cells import as_text, numeric_value
from apportion.tables.table_files import ENCODINGS, USUAL, TableForm

_SETTINGS = ("unit", "id", "ignore", "decimal", "encoding")
_EXAMPLE = 'Try range = [0, 100], or categories = ["a", "b"]'
_LARGEST = 1e300
"""Ends of ranges are smaller, so that their difference is a number."""


@dataclass(frozen=True)
class Column:
    """What one column holds: numbers of a range, or one of several categories.

    Args:
        range: (low, high). A number x becomes (x − low)/(high − low); one outside is moved to the closer end.
        categories: the texts that may occur. Category j of k becomes a vector of k numbers, 1 at place j; any other text is all zeros.
        missing: whether the model gets one more input, 1 where there is no value. A missing number is taken for the middle of its range,
            with or without it.

    Examples:
        >>> import apportion as ap
        >>> ap.tables.Column(range=(18, 90), missing=True)
        Column(range=(18.0, 90.0), categories=None, missing=True)
        >>> ap.tables.Column(categories=["M", "F"]).width
        2
    """

    range: tuple[float, float] | None = None
    categories: tuple[str, ...] | None = None
    missing: bool = False

    def __post_init__(self) -> None:
        if (self.range is None) == (self.categories is None):
            reason = "a column has either a range or categories"
            raise InvalidArgument("column", validate.shown(self.range or self.categories), reason, _EXAMPLE)
        if self.range is not None:
            validate.store(self, range=_read_range(self.range))
        else:
            validate.store(self, categories=_read_categories(self.categories))
        validate.instance_of(bool)("missing", self.missing, "it is a choice", "Use true or false")

    @property
    def width(self) -> int:
        """How many inputs it becomes."""
        return (1 if self.categories is None else len(self.categories)) + self.missing

    def to_dict(self) -> dict[str, Any]:
        """As in a file."""
        held = {"range": list(self.range)} if self.range else {"categories": list(self.categories or ())}
        return held | ({"missing": True} if self.missing else {})


@dataclass(frozen=True)
class Schema:
    """The columns of a table, as they are declared. All of it is public, and saved with a model that was trained by it.

    Nothing of it may be looked up in the private records: the largest age tells of the oldest person, and a category of whoever is the
    only one in it. `apportion data schema` drafts one from public data, or privately.

    Args:
        columns: by name; also as dictionaries: `{"age": {"range": (18, 90)}}`.
        unit: the column that says whose each record is, for a guarantee for users. It is no input.
        id: a column that names a record, by which it is decided whether it is held out; without one its contents decide.
        ignore: columns of the file that are not used.
        weights: of the classes of the target in the loss, 1 for those that are not named.
        decimal: what stands before the fraction of a number that is written as text: "." or ",".
        encoding: of a CSV file: "utf-8", "latin-1", "iso-8859-15", "cp1250", "cp1251" or "cp1252".

    Examples:
        >>> import apportion as ap
        >>> schema = ap.tables.Schema({"age": {"range": (18, 90)}, "ill": {"categories": [0, 1]}}, unit="patient")
        >>> schema.columns["ill"].categories
        ('0', '1')
        >>> ap.tables.Schema({"age": {"range": (90, 18)}})
        Traceback (most recent call last):
            ...
        apportion.errors.InvalidArgument: schema.columns.age.range=(90, 18): its first number must be the smaller one. Try range = [0, 100].
    """

    columns: Mapping[str, Column]
    unit: str | None = None
    id: str | None = None
    ignore: tuple[str, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    decimal: str = "."
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        columns = {_read_name(name): _read_column(name, column) for name, column in _mapping("columns", self.columns)}
        if not columns:
            raise InvalidArgument("schema.columns", "none", "a table has columns", "Write [columns.age] and others")
        validate.known("schema.decimal", self.decimal, (".", ","), "it stands before the fraction of a number")
        validate.known("schema.encoding", self.encoding, ENCODINGS, "CSV files are not read in it")
        named = {role: getattr(self, role) for role in ("unit", "id") if getattr(self, role) is not None}
        for role, name in named.items():
            if not isinstance(name, str) or not name:
                reason = "it must be the name of a column"
                raise InvalidArgument(f"schema.{role}", validate.shown(name), reason, f'Try {role} = "patient"')
        ignore = _read_ignored(self.ignore)
        for role, name in [*named.items(), *(("ignore", name) for name in ignore)]:
            if name in columns:
                reason = "it is also an input or the target, under columns"
                raise InvalidArgument(f"schema.{role}", name, reason, "Take it out of one of the two")
        validate.store(
            self,
            columns=MappingProxyType(columns),
            ignore=ignore,
            weights=MappingProxyType(_read_weights(self.weights)),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied and pickled as what it says: views of dictionaries are neither."""
        return Schema.from_dict, (self.to_dict(),)

    @classmethod
    def read(cls, path: Path | str) -> Schema:
        """From a TOML file."""
        path = Path(path)
        if path.exists() and not path.is_file():
            raise InvalidArgument("schema", str(path), "it is not a file", "Name a TOML file")
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidArgument(
                "schema", str(path), f"it cannot be read: {error.strerror}", "Check the path"
            ) from None
        except (ValueError, RecursionError) as error:  # of TOML, of UTF-8, of a number with thousands of digits
            line = str(error).splitlines()[0]
            raise InvalidArgument("schema", str(path), f"it is not valid TOML: {line}", "Correct that line") from None
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Schema:
        """From what a TOML or JSON file holds."""
        known = {**dict(_mapping("", values))}
        for name in known:
            validate.known("schema", name, (*_SETTINGS, "columns", "loss"), "there is no such setting")
        loss = dict(_mapping("loss", known.pop("loss", {})))
        for name in loss:
            validate.known("schema.loss", name, ("weights",), "there is no such setting")
        if "columns" not in known:
            raise InvalidArgument("schema.columns", None, "a table has columns", "Write [columns.age] and others")
        return cls(**known, weights=loss.get("weights", {}))

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values, for a file."""
        named = {role: getattr(self, role) for role in ("unit", "id") if getattr(self, role) is not None}
        content: dict[str, Any] = named | ({"ignore": list(self.ignore)} if self.ignore else {})
        written = {"decimal": self.decimal, "encoding": self.encoding}
        content |= {name: value for name, value in written.items() if value != getattr(USUAL, name)}
        content |= {"loss": {"weights": dict(self.weights)}} if self.weights else {}
        return content | {"columns": {name: column.to_dict() for name, column in self.columns.items()}}

    @property
    def form(self) -> TableForm:
        """How its files are written."""
        return TableForm(self.decimal, self.encoding)

    def to_toml(self) -> str:
        """The text of a file that `read` takes."""
        content = self.to_dict()
        columns, loss = content.pop("columns"), content.pop("loss", None)
        lines = [f"{name} = {_toml(value)}" for name, value in content.items()]
        if loss is not None:
            pairs = ", ".join(f"{_toml(name)} = {_toml(value)}" for name, value in loss["weights"].items())
            lines.append(f"loss.weights = {{ {pairs} }}")
        for name, column in columns.items():
            lines += ["", f"[columns.{_toml(name)}]", *(f"{key} = {_toml(value)}" for key, value in column.items())]
        return "\n".join(lines).lstrip() + "\n"


def require_schema(schema: Any) -> Schema:
    """A schema as it is, or read from a file."""
    if isinstance(schema, (str, Path)):
        return Schema.read(schema)
    fix = "Pass apportion.tables.Schema(...), or the path of a TOML file"
    found: Schema = validate.instance_of(Schema)("schema", schema, "it is not a Schema", fix)
    return found


def _toml(value: Any) -> str:
    """JSON's texts, lists, numbers and truth values are TOML's too, but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _mapping(place: str, value: Any) -> list[tuple[Any, Any]]:
    if not isinstance(value, Mapping):
        name = f"schema.{place}" if place else "schema"
        raise InvalidArgument(name, validate.shown(value), "it is not a table of names and values", _EXAMPLE)
    return list(value.items())


def _read_name(name: Any) -> str:
    if not isinstance(name, str) or not name or name != name.strip():
        reason = "the name of a column is a text that does not begin or end with a space"
        raise InvalidArgument("schema.columns", validate.shown(name), reason, "Use the name in the header of the file")
    return name


def _read_column(name: Any, column: Any) -> Column:
    place = f"schema.columns.{name}"
    if isinstance(column, Column):
        return column
    if not isinstance(column, Mapping):
        raise InvalidArgument(place, validate.shown(column), "it does not say what the column holds", _EXAMPLE)
    for key in column:
        if key in _SETTINGS:
            reason = "that is said once for the table, not in a column"
            raise InvalidArgument(place, key, reason, f"Write {key} above the columns")
        validate.known(place, key, ("range", "categories", "missing"), "there is no such setting")
    try:
        return Column(**column)
    except InvalidArgument as error:
        inner = "" if error.argument == "column" else f".{error.argument}"
        raise InvalidArgument(place + inner, error.value, error.reason, error.fix) from None


def _read_range(value: Any) -> tuple[float, float]:
    fix = "Try range = [0, 100]"
    numbers = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
    if len(numbers) != 2 or any(isinstance(one, (bool, str)) for one in numbers):
        raise InvalidArgument("range", validate.shown(value), "it must be two numbers", fix)
    low, high = (validate.at_least(-_LARGEST)("range", one, "it is an end of a range", fix) for one in numbers)
    if high > _LARGEST:
        raise InvalidArgument("range", (low, high), "it is endless", fix)
    if not low < high:
        raise InvalidArgument("range", tuple(numbers), "its first number must be the smaller one", fix)
    return low, high


def _read_categories(value: Any) -> tuple[str, ...]:
    fix = 'Try categories = ["a", "b"]'
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise InvalidArgument("categories", validate.shown(value), "it must be a list of texts or numbers", fix)
    if wrong := [one for one in value if isinstance(one, bool) or not isinstance(one, (str, int, float))]:
        reason = "each must be a text or a number, as it is written in the file"
        raise InvalidArgument("categories", validate.shown(wrong[0]), reason, 'Use "True" instead of true')
    texts = tuple(as_text(one) for one in value)
    if "" in texts:
        raise InvalidArgument("categories", list(texts), "no value is not a category", "Use missing = true")
    numbers = [one for text in texts if (one := numeric_value(text)) is not None]
    if len(set(texts)) != len(texts) or len(set(numbers)) != len(numbers):
        raise InvalidArgument("categories", list(texts), "one is there twice", "Name each once")
    return texts


def _read_ignored(value: Any) -> tuple[str, ...]:
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    if not listed or not all(isinstance(one, str) for one in value):
        reason = "it must be a list of names of columns"
        raise InvalidArgument("schema.ignore", validate.shown(value), reason, 'Try ignore = ["remarks"]')
    return tuple(value)


def _read_weights(value: Any) -> dict[str, float]:
    weights = {}
    for name, weight in _mapping("loss.weights", value):
        place, why = f"schema.loss.weights.{name}", "it multiplies the loss of the records of a class"
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < math.inf:
            raise InvalidArgument(place, validate.shown(weight), f"it must be positive, because {why}", "Try 4.0")
        weights[as_text(name)] = float(weight)
    return weights
