"""The durable record of what was spent: one row for each charge, written before the answer leaves the curator.

SQLite with full synchronisation: when `append` returns, the row survives a crash. Rows are only ever added.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from apportion.errors import InvalidArgument
from apportion.request import Event

_SCHEMA = """
CREATE TABLE IF NOT EXISTS charges (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    sample_rate REAL NOT NULL,
    noise_multiplier REAL NOT NULL,
    charged_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
);
CREATE TRIGGER IF NOT EXISTS no_update BEFORE UPDATE ON charges BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER IF NOT EXISTS no_delete BEFORE DELETE ON charges BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
"""


class Ledger:
    """An append-only list of events, on disk or (for `path=None`) in memory."""

    def __init__(self, path: Path | None = None):
        self.path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._connection = sqlite3.connect(path or ":memory:", isolation_level=None)
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise InvalidArgument(
                "ledger", str(path), f"it cannot be opened: {error}", "Choose a writable folder"
            ) from error

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
        """Write the whole ledger into another file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        target = sqlite3.connect(path)
        with target:
            self._connection.backup(target)
        target.close()

    def close(self) -> None:
        self._connection.close()
