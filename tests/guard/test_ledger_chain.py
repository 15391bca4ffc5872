"""Somebody who knows how rows are hashed, and forges one of them together with its hash."""

import sqlite3
from dataclasses import replace

import pytest

from apportion import Budget, InvalidArgument, Record
from apportion.accounting.account import Account
from apportion.accounting.ledger import Ledger
from apportion.accounting.rules import FixedPlan
from apportion.event import Event


@pytest.mark.parametrize("forged", [1, 2, 3, 4])
def test_a_row_that_was_forged_with_its_own_hash_shows_in_the_next_one(tmp_path, forged):
    path, token = tmp_path / "ledger.sqlite", Event(1.0, 40.0)
    ledger = Ledger.create(path)
    spending = Account(Budget(epsilon=3.0, delta=1e-5, unit=Record()), FixedPlan([token] * 4), ledger)
    for _ in range(4):
        spending.charge(token)
    rows = list(ledger.rows())
    ledger.close()
    row = rows[forged - 1]
    previous = rows[forged - 2].hash if forged > 1 else ""
    changed = replace(row, content=row.content.replace("40.0", "90.0").replace('"name": null', '"name": "other"'))
    assert changed != row
    connection = sqlite3.connect(path)
    trigger = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'no_update'").fetchone()[0]
    connection.execute("DROP TRIGGER no_update")
    connection.execute(
        "UPDATE entries SET content = ?, hash = ? WHERE number = ?",
        (changed.content, changed.expected_hash(previous), forged),
    )
    connection.execute(trigger)
    connection.commit()
    connection.close()
    with pytest.raises(InvalidArgument, match=f"row {forged + 1}"):
        Ledger.attach(path)
