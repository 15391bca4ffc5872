"""The durable record of what was spent: one row for each charge, written before the answer leaves the curator.

SQLite with its strictest synchronisation: when `append` returns, the row survives a crash. Rows are only ever added. A new ledger is
created exclusively, so that no second run can take it for its own.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from apportion.errors import InvalidArgument
from apportion.request import Event

_SCHEMA = """
CREATE TABLE charges (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    sample_rate REAL NOT NULL,
    noise_multiplier REAL NOT NULL,
    charged_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
);
CREATE TRIGGER no_update BEFORE UPDATE ON charges BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER no_delete BEFORE DELETE ON charges BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
"""


class Ledger:
    """An append-only list of events. Use `create` for a new run and `open` to read an old one."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None):
        self._connection, self.path = connection, path
        self._connection.execute("PRAGMA synchronous = EXTRA")

    @classmethod
    def create(cls, path: Path | None = None) -> Ledger:
        """A new, empty ledger; in memory for `path=None`. Refuses a file that exists: spending is never overwritten."""
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.parent.chmod(0o700)
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            except FileExistsError as error:
                raise InvalidArgument(
                    "out", str(path), "there is the ledger of an earlier run already", "Choose a new folder"
                ) from error
            except OSError as error:
                raise InvalidArgument(
                    "out", str(path), f"it cannot be written: {error.strerror}", "Choose a writable folder"
                ) from error
        ledger = cls(sqlite3.connect(path or ":memory:", isolation_level=None), path)
        ledger._connection.executescript(_SCHEMA)
        return ledger

    @classmethod
    def open(cls, path: Path) -> Ledger:
        """An existing ledger, to be read."""
        try:
            ledger = cls(sqlite3.connect(f"file:{path}?mode=ro", uri=True), path)
            ledger._connection.execute("SELECT COUNT(*) FROM charges")
        except sqlite3.Error as error:
            raise InvalidArgument(
                "ledger", str(path), f"it cannot be read: {error}", "Name a ledger.sqlite file"
            ) from error
        return ledger

    def append(self, event: Event) -> None:
        """Write the charge. Durable when this returns."""
        self._connection.execute(
            "INSERT INTO charges (sample_rate, noise_multiplier) VALUES (?, ?)",
            (event.sample_rate, event.noise_multiplier),
        )

    def events(self) -> Iterator[Event]:
        """All charges, oldest first."""
        for sample_rate, noise_multiplier in self._connection.execute(
            "SELECT sample_rate, noise_multiplier FROM charges ORDER BY number"
        ):
            yield Event(sample_rate, noise_multiplier)

    def counts(self) -> Counter[Event]:
        """All charges, equal ones counted."""
        rows = self._connection.execute(
            "SELECT sample_rate, noise_multiplier, COUNT(*) FROM charges GROUP BY sample_rate, noise_multiplier"
        )
        return Counter({Event(sample_rate, noise_multiplier): count for sample_rate, noise_multiplier, count in rows})

    def copy_to(self, path: Path) -> None:
        """Write all charges into a new ledger."""
        target = Ledger.create(path)
        for event in self.events():
            target.append(event)
        target.close()

    def close(self) -> None:
        self._connection.close()
