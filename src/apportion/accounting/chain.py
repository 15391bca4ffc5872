"""An append-only table in one SQLite file, whose rows are chained by hashes. What the rows mean is written in `ledger.py`.

* **Durable.** A rollback journal with `synchronous = EXTRA`: when `transaction` ends, its rows survive a crash of the process and,
  as far as the disk keeps its word, of the machine.
* **Shared.** `BEGIN IMMEDIATE` takes the only write lock before anything is read, so that what was read is still true when the row is
  written. Who has to wait says so on standard error, and gives up after `PATIENCE` seconds.
* **Chained.** hash_n = SHA-256 of (hash_{n−1}, n, run, step, content, time). `verify` finds a row that was edited, moved, inserted or
  deleted. It cannot find that all hashes were computed anew, or that the file was replaced by an older copy of itself, unless a hash
  was noted elsewhere: `verify(head=...)`.

Every SQLite error becomes an `InvalidArgument` that says what to do.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from apportion.errors import InvalidArgument, TakenOver

PATIENCE = 30.0
"""Seconds to wait for a lock before giving up."""
ATTEMPT = 1.0
"""Seconds after which a person is told that one waits."""
_PAGE = 10_000
_CONTENT = json.JSONEncoder(sort_keys=True, ensure_ascii=False)  # made once: `json.dumps` makes one at every call
_HASHED = json.JSONEncoder(default=repr)

_Written = tuple[float, int, int, Mapping[str, Any]]
"""When a row was added, its run, step and content."""

_SCHEMA = (
    """CREATE TABLE entries (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    run INTEGER NOT NULL,
    step INTEGER NOT NULL,
    content TEXT NOT NULL,
    written TEXT NOT NULL,
    hash TEXT NOT NULL,
    UNIQUE (run, step)
)""",
    "CREATE TRIGGER no_update BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
    "CREATE TRIGGER no_delete BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END",
)


@dataclass(frozen=True)
class Row:
    """One entry. `content` is the JSON text that the hash covers, byte for byte."""

    number: int
    run: int
    step: int
    content: str
    written: str
    hash: str

    def expected_hash(self, previous: str) -> str:
        return _digest(previous, self.number, self.run, self.step, self.content, self.written)


_END = (
    "SELECT (SELECT hash FROM entries ORDER BY number DESC LIMIT 1),"
    " (SELECT seq FROM sqlite_sequence WHERE name = 'entries')"
)


@dataclass(frozen=True)
class Damage:
    """The first thing that is wrong. `row` is `None` if it is the file itself and not a row."""

    row: int | None
    reason: str

    def __str__(self) -> str:
        return self.reason if self.row is None else f"row {self.row}: {self.reason}"


class Chain:
    """The rows of one file, or of memory for `path=None`."""

    def __init__(self, path: Path | None, *, read_only: bool = False):
        self.path, self._read_only = path, read_only
        self._waiting: list[_Written] = []
        self._keys: set[tuple[int, int]] = set()  # of all rows in memory: no token is spent twice
        # Not `mode=ro`: after a crash SQLite must be allowed to undo a half-written transaction before it reads.
        address = "file::memory:" if path is None else f"{path.resolve().as_uri()}?mode=rw"
        try:
            self._connection = sqlite3.connect(address, uri=True, isolation_level=None, timeout=ATTEMPT)
        except sqlite3.Error as error:
            raise self._explained(error) from error
        self.execute("PRAGMA synchronous = EXTRA")
        if read_only:
            self.execute("PRAGMA query_only = ON")

    @classmethod
    def create(cls, path: Path | None, first: Mapping[str, Any]) -> Chain:
        """A new table whose first row is `first`. The file must exist and be empty: see `new_file`."""
        chain = cls(path)
        try:
            with chain.transaction():
                for statement in _SCHEMA:
                    chain.execute(statement)
                chain.append(0, 0, first)
        except BaseException:
            chain.close()
            raise
        return chain

    def execute(self, statement: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
        """Run a statement to its end. Waits, with a message, while another process holds the lock."""
        if self._waiting:
            self._write_waiting()
        started, told = time.monotonic(), False
        while True:
            try:
                return self._connection.execute(statement, parameters).fetchall()
            except (
                sqlite3.Error,
                UnicodeDecodeError,
            ) as error:  # of a damaged file even SQLite's message may be no text
                if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() - started > PATIENCE:
                    raise self._explained(error) from error
                if not told:
                    text = f"waiting for the ledger {self.path}: another process is using it"
                    print(text, file=sys.stderr, flush=True)
                    told = True
                time.sleep(0.005)  # some locks are reported at once, without SQLite's own waiting

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, and alone: what is read inside cannot change before it ends. Durable when it has ended."""
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # SQLite has rolled back already after some errors
                self._connection.execute("ROLLBACK")
            raise

    def add(self, rows: Iterable[tuple[int, int, Mapping[str, Any]]]) -> None:
        """Add rows (run, step, content), all or none. Durable when this returns.

        Those of memory, which end with the process in any case, become rows of the table when somebody looks at it: a statement of SQLite
        takes as long as a small layer.
        """
        rows = list(rows)
        keys = {(run, step) for run, step, _ in rows}
        if self.path is None and len(keys) == len(rows) and keys.isdisjoint(self._keys):
            moment = time.time()
            self._waiting += [(moment, *row) for row in rows]
            self._keys |= keys
            return
        with self.transaction():
            self.extend(rows)

    def _write_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            with self.transaction():
                self._insert(waiting)
        except BaseException:
            self._waiting = waiting
            raise

    def append(self, run: int, step: int, content: Mapping[str, Any]) -> None:
        """Add a row; only inside a transaction."""
        self.extend([(run, step, content)])

    def extend(self, rows: Iterable[tuple[int, int, Mapping[str, Any]]]) -> None:
        """Add rows (run, step, content); only inside a transaction.

        Numbers follow all that were ever given, so a deleted row leaves a gap.
        """
        moment = time.time()
        self._insert([(moment, *row) for row in rows])

    def _insert(self, rows: Sequence[_Written]) -> None:
        head, given = self._end()
        for number, (moment, run, step, content) in enumerate(rows, start=given + 1):
            written = datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
            text = _CONTENT.encode(content)
            head = _digest(head, number, run, step, text, written)
            self.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?)", (number, run, step, text, written, head))
            if self.path is None:
                self._keys.add((run, step))

    def rows(self, run: int | None = None) -> Iterator[Row]:
        """All rows, or those of one run, oldest first; read in pieces so that nobody has to wait for a slow reader."""
        last = 0
        columns = ", ".join(field.name for field in fields(Row))
        query = f"SELECT {columns} FROM entries WHERE number > ? AND (? IS NULL OR run = ?) ORDER BY number LIMIT ?"
        while page := self.execute(query, (last, run, run, _PAGE)):
            yield from (Row(*values) for values in page)
            last = page[-1][0]

    def head(self) -> str:
        """The hash of the last row."""
        return self._end()[0]

    def verify(self, head: str | None = None) -> Damage | None:
        """The first row that is not as it was written, or `None`.

        Args:
            head: a hash noted earlier. A chain that no longer holds it was replaced, rewritten or cut off.
        """
        number, previous, seen = 0, "", head is None
        try:
            health = self.execute("PRAGMA integrity_check(1)")[0][0]
            if health != "ok":
                return Damage(None, f"the file is damaged: {health}")
            if {text for (text,) in self.execute("SELECT sql FROM sqlite_master")} - {None} != self._expected_schema():
                return Damage(None, "the tables or the triggers that keep them append-only were changed")
            _, given = self._end()  # before the rows: others may append meanwhile
            for row in self.rows():
                number += 1
                if row.number != number:
                    return Damage(number, "it is missing")
                if row.hash != row.expected_hash(previous):
                    return Damage(number, "it does not match its hash: it was changed after it was written")
                previous = row.hash
                seen = seen or row.hash == head
        except InvalidArgument as error:
            return Damage(None, f"{error.reason} (after row {number})")
        if number < given:
            return Damage(number + 1, f"it is missing, with all that followed up to row {given}")
        if not seen:
            return Damage(
                None, f"no row has the hash {head}: the file was replaced, rewritten or cut off since it was noted"
            )
        return None

    def close(self) -> None:
        self._connection.close()

    def _end(self) -> tuple[str, int]:
        """The hash of the last row, and the last number that was ever given."""
        ((head, given),) = self.execute(_END)
        return "" if head is None else str(head), given if isinstance(given, int) else 0

    @staticmethod
    def _expected_schema() -> set[str]:
        return {*_SCHEMA, "CREATE TABLE sqlite_sequence(name,seq)"}

    def _explained(self, error: Exception) -> InvalidArgument:
        """What a person can do about it. A charge that failed raises before the coins: nothing was released."""
        unreadable = (
            f"it cannot be read: {error}",
            "Name a ledger file, or restore it from a backup and charge what is missing",
        )
        if self.path is not None and not self.path.exists():
            unreadable = (
                "it cannot be read: there is no such file",
                "Declare the limit of a new data set with `apportion ledger limit`; restore a ledger that had charges from a backup",
            )
        reason, fix = {
            sqlite3.SQLITE_BUSY: (
                f"another process has locked it for more than {PATIENCE:g} s; nothing was charged and nothing released",
                "Find that process (for example with `fuser`) and end it, or try again",
            ),
            sqlite3.SQLITE_FULL: (
                "the disk is full, so the charge could not be written; nothing was released",
                "Free some space and start again",
            ),
            sqlite3.SQLITE_READONLY: (
                "it must not be written; nothing was charged and nothing released",
                "Change its permissions, or open it for charging",
            ),
            sqlite3.SQLITE_IOERR: (
                f"the disk failed: {error}; nothing was released",
                "Check the disk and the file system, then `apportion ledger verify`",
            ),
            sqlite3.SQLITE_CONSTRAINT: (
                "this step is charged already: another process spends the same run",
                "Let one process at a time continue a run",
            ),
        }.get(_code(error), unreadable)
        kind = TakenOver if _code(error) == sqlite3.SQLITE_CONSTRAINT else InvalidArgument
        return kind("ledger", str(self.path), reason, fix)


def new_file(path: Path, *, argument: str, reason: str, fix: str) -> None:
    """Make an empty file that only its owner may read; refuse with `reason` and `fix` if there is one already."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError as error:
        raise InvalidArgument(argument, str(path), reason, fix) from error
    except OSError as error:
        raise InvalidArgument(
            argument, str(path), f"it cannot be written: {error.strerror}", "Choose a writable folder"
        ) from error


def _digest(previous: str, *values: object) -> str:
    return hashlib.sha256(_HASHED.encode([previous, *values]).encode()).hexdigest()


def _code(error: Exception) -> int:
    """The primary result code, without the details in the higher bits; 0 for errors of the Python binding."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
