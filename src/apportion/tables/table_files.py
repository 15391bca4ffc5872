"""Read a table record by record: a CSV or Parquet file, or a pandas or polars frame.

The header and the format are the structure of a table, which is public: what is wrong there is an error. A record is private: whatever
is in it, it is read by itself, and nothing is raised. So no types are guessed from columns, and a CSV file is read line by line: an open
quotation mark cannot reach into the next record. A line with another number of fields than the header is a record that cannot be used.
The types of the columns of a frame are structure too: one of floats cannot hold ids, because whole numbers above 2⁵³ become equal in it,
and one of times or lists holds no numbers, whatever is in it.
"""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apportion import validate
from apportion.curator.foreign_code import contain_errors, watch_signals
from apportion.errors import InvalidArgument
from apportion.extras import require_extra
from apportion.tables.cells import as_text

Row = tuple[str, ...] | None
"""The texts of a record, or nothing if its fields are not those of the header."""
DELIMITERS = (",", ";", "\t")
CSV, PARQUET = (".csv", ".tsv"), (".parquet", ".pq")
ENCODINGS = ("utf-8", "latin-1", "iso-8859-15", "cp1250", "cp1251", "cp1252")
"""Ways to write letters in which every byte below 128 is ASCII, so that lines and fields can be told apart before they are read."""
_NO_NUMBERS = (
    "date",
    "time",
    "duration",
    "period",
    "interval",
    "list",
    "large_list",
    "fixed_size",
    "array",
    "struct",
    "map",
    "binary",
)
"""How the types of pandas, polars and Arrow begin whose values are no numbers: every one would be taken for the middle of its range."""
_ROWS = 4096


@dataclass(frozen=True)
class TableForm:
    """How numbers and letters are written in a table; declared.

    Args:
        decimal: what stands before the fraction of a number: "." or ",".
        encoding: of the letters of a CSV file.
    """

    decimal: str = "."
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        validate.known("decimal", self.decimal, (".", ","), "it stands before the fraction of a number")
        validate.known("encoding", self.encoding, ENCODINGS, "CSV files are not read in it")

    def decode_header(self, argument: str, path: Path, line: bytes) -> str:
        """The first line of a CSV file; refused if it is no text."""
        if not line.strip():
            raise InvalidArgument(argument, str(path), "its first line is empty, and not a header", "Name a CSV file")
        try:
            text = line.decode("utf-8-sig" if self.encoding == "utf-8" else self.encoding)
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            fix = 'Write it as CSV in UTF-8, or say how it is written: encoding = "latin-1" in the schema'
            raise InvalidArgument(argument, str(path), f"its header is not text in {self.encoding.upper()}", fix)
        return text


USUAL = TableForm()


@dataclass(frozen=True, eq=False)
class Table:
    """An opened table.

    Args:
        name: what errors call it.
        header: the names of the columns that are read, in that order.
        rows: the records, which can be read once.
    """

    name: str
    header: tuple[str, ...]
    rows: Iterator[Row]


@dataclass(frozen=True)
class Wanted:
    """Which columns a table must and may have.

    Args:
        required: those that are read.
        allowed: those that may be there besides, and are not read.
        ids: those of `required` that tell records or people apart.
        numbers: those of `required` that are declared by a range.
    """

    required: tuple[str, ...]
    allowed: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()

    def check_types(self, argument: str, name: str, types: Callable[[str], Any]) -> None:
        """Refuse ids in a column of floats, and a range of a column that cannot hold a number, by their types alone."""
        for column in self.numbers:
            if str(found := types(column)).lower().startswith(_NO_NUMBERS):
                reason = f"its column {column!r} is declared by a range and holds no numbers ({found})"
                fix = "Write it as numbers, such as days since a date that is fixed, or ignore it in the schema"
                raise InvalidArgument(argument, name, reason, fix)
        for column in self.ids:
            if _holds_floats(found := types(column)):
                reason = f"its column {column!r} tells records or people apart and holds floats ({found}): large ids are equal in it"
                fix = f'Read it as text or as whole numbers, in pandas dtype={{{column!r}: "string"}} or "Int64"'
                raise InvalidArgument(argument, name, reason, fix)

    def check(self, argument: str, name: str, header: Sequence[str]) -> None:
        """Refuse a header that is not as it should be. Names in it are told only if it is sure to be one: it could be a record."""
        if lacking := [column for column in self.required if column not in header]:
            reason = f"its header lacks {', '.join(map(repr, lacking))}"
            fix = "The first line must name the columns as the schema does, separated by commas"
            raise InvalidArgument(argument, name, reason, fix)
        if twice := sorted({column for column in header if header.count(column) > 1}):
            raise InvalidArgument(argument, name, f"its header has {twice[0]!r} twice", "Rename one of the two")
        known = {*self.required, *self.allowed}
        if unknown := [column for column in header if column not in known]:
            reason = f"it has columns that the schema does not have: {', '.join(map(repr, unknown))}"
            raise InvalidArgument(argument, name, reason, f"Declare them, or write ignore = {unknown!r} in the schema")


def is_table(name: str) -> bool:
    """Whether the name is that of a file with a table."""
    return name.lower().endswith((*CSV, *PARQUET))


def _holds_floats(kind: Any) -> bool:
    """Whether a type of NumPy, pandas, polars or Arrow is one of floats."""
    return getattr(kind, "kind", "") == "f" or str(kind).lower().startswith(("float", "double", "halffloat"))


def open_table(argument: str, source: Any, wanted: Wanted, form: TableForm = USUAL) -> Table:
    """Open a file or a frame and check its structure.

    Args:
        argument: what errors call it.
        source: a path, or a pandas or polars frame.
        form: how it is written.
    """
    if isinstance(source, (str, Path)):
        path = _require_file(argument, Path(source))
        return (_open_parquet if path.suffix.lower() in PARQUET else _open_csv)(argument, path, wanted, form)
    return _open_frame(argument, source, wanted, form)


def read_texts(argument: str, path: Path, column: str, form: TableForm = USUAL) -> list[str]:
    """The cells of one column, as they are written; empty for a row that cannot be read."""
    header = read_header(argument, path, form)
    validate.known("id", column, header, "the file has no such column")
    table = open_table(argument, path, Wanted((column,), header), form)
    return ["" if row is None else row[0] for row in table.rows]


def _require_file(argument: str, path: Path) -> Path:
    if not path.is_file():
        reason = "it is not a file" if path.exists() else "there is no such file"
        raise InvalidArgument(argument, str(path), reason, "Name a CSV or Parquet file")
    if not is_table(path.name):
        reason = f"its ending is none of {', '.join((*CSV, *PARQUET))}"
        raise InvalidArgument(argument, str(path), reason, "Name a CSV or Parquet file")
    return path


def read_header(argument: str, path: Path, form: TableForm = USUAL) -> tuple[str, ...]:
    """The names in the first line of a CSV file, or of the columns of a Parquet file; which has them is public."""
    _require_file(argument, path)
    if path.suffix.lower() in PARQUET:
        return tuple(_parquet_file(argument, path).schema_arrow.names)
    with path.open("rb") as file:
        line = form.decode_header(argument, path, file.readline())
    names = max((_fields(line, one) or () for one in DELIMITERS), key=len)
    return tuple(names)


def _open_csv(argument: str, path: Path, wanted: Wanted, form: TableForm) -> Table:
    with path.open("rb") as file:
        line = form.decode_header(argument, path, file.readline())
    headers = {delimiter: tuple(_fields(line, delimiter) or ()) for delimiter in DELIMITERS}
    fits = (one for one in DELIMITERS if set(wanted.required) <= set(headers[one]))
    delimiter = next(fits, DELIMITERS[0])
    header = headers[delimiter]
    if "" in header and set(wanted.required) <= set(header):
        fix = "Name it, or write the file without it (in pandas: index=False)"
        raise InvalidArgument(argument, str(path), "its header has a column without a name", fix)
    wanted.check(argument, str(path), header)
    places = [header.index(column) for column in wanted.required]
    return Table(str(path), wanted.required, _csv_rows(path, delimiter, len(header), places, form.encoding))


def _csv_rows(path: Path, delimiter: str, width: int, places: Sequence[int], encoding: str) -> Iterator[Row]:
    with path.open("rb") as file:
        file.readline()
        for line in file:
            text = line.decode(encoding, errors="replace")
            if not text.strip():
                continue
            fields = _fields(text, delimiter)
            yield tuple(fields[place] for place in places) if fields is not None and len(fields) == width else None


def _fields(line: str, delimiter: str) -> list[str] | None:
    try:
        found = next(csv.reader([line.rstrip("\r\n")], delimiter=delimiter, skipinitialspace=True), None)
    except csv.Error:
        return None
    return None if found is None else [one.strip() for one in found]


def _parquet_file(argument: str, path: Path) -> Any:
    require_extra("tables", "pyarrow")
    from pyarrow import parquet

    with _intact(argument, path):
        return parquet.ParquetFile(path)


@contextlib.contextmanager
def _intact(argument: str, path: Path) -> Iterator[None]:
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError):
        reason = "it is not a Parquet file, or damaged"
        raise InvalidArgument(argument, str(path), reason, "Write it anew, or use a CSV file") from None


def _open_parquet(argument: str, path: Path, wanted: Wanted, form: TableForm) -> Table:
    file = _parquet_file(argument, path)
    wanted.check(argument, str(path), file.schema_arrow.names)
    wanted.check_types(argument, str(path), lambda name: file.schema_arrow.field(name).type)

    def rows() -> Iterator[Row]:
        with contextlib.closing(file), _intact(argument, path):
            for batch in file.iter_batches(_ROWS, columns=list(wanted.required)):
                columns = [batch.column(name) for name in wanted.required]
                yield from _rows_of([_values(one.to_pylist, one, lambda value: value.as_py()) for one in columns], form)

    return Table(str(path), wanted.required, rows())


def _open_frame(argument: str, frame: Any, wanted: Wanted, form: TableForm) -> Table:
    kind = type(frame).__name__
    names = getattr(frame, "columns", None)
    if names is None or not hasattr(frame, "__getitem__") or not hasattr(frame, "__len__"):
        reason = "it is neither a file nor a data frame"
        raise InvalidArgument(argument, kind, reason, "Pass a path, or a pandas or polars DataFrame")
    header = [one if isinstance(one, str) else repr(one) for one in names]
    wanted.check(argument, kind, header)
    wanted.check_types(argument, kind, lambda name: frame[name].dtype)
    columns = [frame[name] for name in wanted.required]

    def value_at(column: Any) -> Callable[[int], Any]:
        rows = getattr(column, "iloc", column)
        return lambda place: rows[place]

    values = [_values(one.to_list, range(len(frame)), value_at(one)) for one in columns]
    return Table(kind, wanted.required, _rows_of(values, form))


def _values(together: Callable[[], list[Any]], each: Iterable[Any], read: Callable[[Any], Any]) -> list[Any]:
    """The values of a column; one by one if they cannot be had together, and nothing for those that cannot be had at all."""
    with watch_signals():
        with contain_errors():  # text that is not UTF-8, a time that Python does not know
            return together()
        return [_value(one, read) for one in each]


def _value(one: Any, read: Callable[[Any], Any]) -> Any:
    with contain_errors():
        return read(one)
    return None


def _rows_of(columns: Iterable[list[Any]], form: TableForm) -> Iterator[Row]:
    with watch_signals():
        texts = [[as_text(value, form.decimal) for value in values] for values in columns]
    return iter(zip(*texts, strict=True))
