"""The ledger of a data set within one process: admission, the chain, and everything that can be wrong with the file."""

import os
import shutil
import sqlite3
import statistics
import time

import pytest

from apportion import Budget, BudgetExhausted, InvalidArgument, Record
from apportion.accounting import chain
from apportion.accounting.account import Account
from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.accounting.ledger import Ledger
from apportion.accounting.rules import FixedPlan
from apportion.accounting.run_filter import GaussianRuns, SumOfRuns
from apportion.event import Event

LIMIT = Budget(epsilon=3.0, delta=1e-5, unit=Record())
TOKEN = Event(1.0, 4.0)  # on all records: μ = 1/4 exactly


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "patients.sqlite"
    Ledger.create(file, name="patients", rule=GaussianRuns(LIMIT)).close()
    return file


def account(ledger, tokens, delta=1e-6, **continued):
    budget = Budget(epsilon=3.0, delta=delta, unit=Record())
    return Account(budget, FixedPlan(tokens), ledger, **continued)


def spend(path, steps, of=None):
    ledger = Ledger.attach(path)
    spending = account(ledger, [TOKEN] * (of or steps))
    for _ in range(steps):
        spending.charge(TOKEN)
    ledger.close()


def reading(path, question):
    ledger = Ledger.open(path)
    try:
        return question(ledger)
    finally:
        ledger.close()


def tamper(path, *statements):
    """As somebody would who knows SQL: the triggers are put back afterwards."""
    connection = sqlite3.connect(path)
    triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        connection.execute(statement)
    for _, sql in triggers:
        connection.execute(sql)
    connection.commit()
    connection.close()


def test_runs_are_admitted_until_the_limit_and_then_refused(path):
    capacity = GaussianRuns(LIMIT).capacity()
    fitting = int(capacity.main / (4 / 16))  # runs of four steps
    for _ in range(fitting):
        spend(path, 4)
    ledger = Ledger.attach(path)
    with pytest.raises(BudgetExhausted, match=r"'patients'.*Requested: μ² = 0.25 .*Left: μ² = .*Missing: μ² = "):
        account(ledger, [TOKEN] * 4)
    assert ledger.spent().main == pytest.approx(fitting / 4)
    assert ledger.counts() == {TOKEN: 4 * fitting}
    assert ledger.counts(run=2) == {TOKEN: 4}
    assert list(ledger.events(run=1)) == [TOKEN] * 4
    assert [run.number for run in ledger.runs()] == list(range(1, fitting + 1))
    ledger.close()


def test_a_run_counts_with_its_whole_plan_once_it_begins_and_not_before(path):
    ledger = Ledger.attach(path)
    spending = account(ledger, [TOKEN] * 5)
    assert ledger.runs() == []
    spending.charge(TOKEN)
    assert ledger.spent().main == pytest.approx(5 / 16)
    assert spending.epsilon() < spending.planned_epsilon()
    ledger.close()


def test_the_account_of_a_run_sees_only_its_own_charges(path):
    spend(path, 3)
    ledger = Ledger.attach(path)
    spending = account(ledger, [TOKEN] * 2)
    assert spending.epsilon() == 0
    spending.charge(TOKEN)
    assert spending.epsilon() == PrivacyLossAccountant().epsilon({TOKEN: 1}, 1e-6)
    ledger.close()


def test_two_accounts_that_saw_the_same_room_cannot_both_have_it(path):
    ledger, other = Ledger.attach(path), Ledger.attach(path)
    plan = [TOKEN] * 5
    first, second = account(ledger, plan), account(other, plan)
    first.charge(TOKEN)
    with pytest.raises(BudgetExhausted, match="Nothing was charged"):
        second.charge(TOKEN)
    assert second.spent == 0
    assert len(ledger.runs()) == 1
    for each in (ledger, other):
        each.close()


def test_nobody_is_admitted_between_the_check_and_the_row(path, monkeypatch):
    monkeypatch.setattr(chain, "ATTEMPT", 0.05)
    monkeypatch.setattr(chain, "PATIENCE", 0.1)
    ledger, other = Ledger.attach(path), Ledger.attach(path)
    first, second = account(ledger, [TOKEN] * 5), account(other, [TOKEN] * 5)
    check = ledger.require_room

    def check_while_another_tries(cost):
        check(cost)
        with pytest.raises(InvalidArgument, match="has locked it"):
            second.charge(TOKEN)

    monkeypatch.setattr(ledger, "require_room", check_while_another_tries)
    first.charge(TOKEN)
    assert len(ledger.runs()) == 1
    for each in (ledger, other):
        each.close()


def test_the_sum_rule_limits_delta_too(tmp_path):
    path = tmp_path / "sum.sqlite"
    ledger = Ledger.create(path, name="sums", rule=SumOfRuns(LIMIT))
    account(ledger, [Event(1.0, 40.0)], delta=6e-6).charge(Event(1.0, 40.0))
    with pytest.raises(BudgetExhausted, match="Missing: ε = 0, δ = 2e-06"):
        account(ledger, [Event(1.0, 40.0)], delta=6e-6)
    ledger.close()


def test_an_older_checkpoint_refunds_nothing(path):
    """Whoever goes back continues with the tokens that the ledger has left, or is admitted, and pays, as a new run."""
    ledger = Ledger.attach(path)
    spending = account(ledger, [TOKEN] * 4)
    for _ in range(3):
        spending.charge(TOKEN)
    ledger.close()
    ledger = Ledger.attach(path)
    name = spending.identifier
    continued = account(ledger, [TOKEN] * 4, identifier=name, position=1)
    assert (continued.spent, continued.left, continued.next_step) == (3, 1, 4)
    continued.charge(TOKEN)
    with pytest.raises(BudgetExhausted, match="4 steps are spent"):
        continued.charge(TOKEN)
    with pytest.raises(InvalidArgument, match="this run with another plan"):
        account(ledger, [TOKEN] * 5, identifier=name)
    with pytest.raises(BudgetExhausted):
        account(ledger, [TOKEN] * 8)
    assert ledger.spent().main == pytest.approx(4 / 16)
    ledger.close()


def test_two_processes_cannot_continue_one_run_side_by_side(path):
    spend(path, 1, of=4)
    ledger = Ledger.attach(path)
    name = ledger.runs()[0].identifier
    first, second = (account(ledger, [TOKEN] * 4, identifier=name, position=1) for _ in range(2))
    first.charge(TOKEN)
    with pytest.raises(InvalidArgument, match="charged already: another process spends the same run"):
        second.charge(TOKEN)
    assert ledger.counts() == {TOKEN: 2}
    ledger.close()


def test_another_process_cannot_declare_the_limit_anew(path):
    with pytest.raises(InvalidArgument, match="a declared limit stays"):
        Ledger.create(path, name="patients", rule=GaussianRuns(Budget(epsilon=9.0, delta=1e-5, unit=Record())))


@pytest.mark.parametrize(
    ("statement", "row"),
    [
        ("UPDATE entries SET content = replace(content, '4.0', '9.0') WHERE number = 4", "row 4: it does not match"),
        ("UPDATE entries SET content = x'ff00' WHERE number = 4", "row 4: it does not match"),
        ("UPDATE entries SET written = '2001-01-01' WHERE number = 3", "row 3: it does not match"),
        ("UPDATE entries SET content = replace(content, '3.0', '8.0') WHERE number = 1", "row 1: it does not match"),
        ("UPDATE entries SET step = 99 WHERE number = 5", "row 5: it does not match"),
        ("UPDATE entries SET hash = 'forged' WHERE number = 6", "row 6: it does not match"),
        ("DELETE FROM entries WHERE number = 4", "row 4: it is missing"),
        ("DELETE FROM entries WHERE number >= 5", "row 5: it is missing, with all that followed up to row 6"),
        ("INSERT INTO entries VALUES (7, 1, 5, '{}', 'now', 'forged')", "row 7: it does not match"),
        ("DROP TRIGGER IF EXISTS no_delete", None),
    ],
)
def test_the_first_bad_row_is_found(path, statement, row):
    spend(path, 4)
    assert reading(path, Ledger.verify) is None
    if row is not None:
        tamper(path, statement)
    else:
        connection = sqlite3.connect(path)
        connection.execute(statement)
        connection.commit()
        connection.close()
        row = "triggers that keep them append-only were changed"
    assert row in str(reading(path, Ledger.verify))
    with pytest.raises(InvalidArgument, match="damaged and can only be read"):
        Ledger.attach(path)


def test_what_cannot_be_detected_from_inside_shows_against_a_noted_hash(path, tmp_path):
    """An older copy, or the end cut off together with SQLite's counter, is a good chain. Only a hash noted elsewhere tells."""
    spend(path, 2)
    older = tmp_path / "older.sqlite"
    shutil.copy(path, older)
    spend(path, 2)
    head = reading(path, Ledger.head)
    assert reading(path, lambda ledger: ledger.verify(head)) is None
    assert reading(older, Ledger.verify) is None
    assert "replaced, rewritten or cut off" in str(reading(older, lambda ledger: ledger.verify(head)))
    tamper(path, "DELETE FROM entries WHERE number > 5", "UPDATE sqlite_sequence SET seq = 5")
    assert reading(path, Ledger.verify) is None
    assert "no row has the hash" in str(reading(path, lambda ledger: ledger.verify(head)))


def test_a_row_deleted_while_somebody_writes_leaves_a_gap(path):
    ledger = Ledger.attach(path)
    spending = account(ledger, [TOKEN] * 4)
    spending.charge(TOKEN)
    spending.charge(TOKEN)
    tamper(path, "DELETE FROM entries WHERE number = 4")
    spending.charge(TOKEN)
    assert "row 4: it is missing" in str(ledger.verify())
    ledger.close()


def test_a_damaged_ledger_can_still_be_read(path):
    spend(path, 3)
    tamper(path, "UPDATE entries SET written = 'long ago' WHERE number = 3")
    assert reading(path, Ledger.counts) == {TOKEN: 3}


def test_a_ledger_opened_to_be_read_cannot_be_written(path):
    ledger = Ledger.open(path)
    with pytest.raises(InvalidArgument, match="must not be written"):
        ledger.append(TOKEN, 1, 1)
    ledger.close()


def test_damaged_pages_are_explained(path):
    spend(path, 4)
    content = bytearray(path.read_bytes())
    content[4096:8192] = b"\xa5" * 4096
    path.write_bytes(content)
    for open_it in (Ledger.open, Ledger.attach):
        with pytest.raises(InvalidArgument, match="cannot be read: database disk image is malformed.*backup"):
            open_it(path)


def test_other_files_are_explained(tmp_path):
    empty, other = tmp_path / "empty.sqlite", tmp_path / "other.sqlite"
    empty.touch()
    other.write_text("no database " * 100)
    for file in (empty, other, tmp_path / "missing.sqlite", tmp_path):
        with pytest.raises(InvalidArgument, match="cannot be read"):
            Ledger.attach(file)
    assert not (tmp_path / "missing.sqlite").exists()


def test_a_ledger_that_does_not_exist_is_not_made(tmp_path):
    with pytest.raises(InvalidArgument, match=r"there is no such file\. Declare the limit .*apportion ledger limit"):
        Ledger.open(tmp_path / "nothing.sqlite")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_charges_and_releases_nothing(path):
    ledger = Ledger.attach(path)
    plan = [TOKEN] * 4
    spending = account(ledger, plan)
    spending.charge(TOKEN)
    pages = ledger._chain.execute("PRAGMA page_count")[0][0]
    ledger._chain.execute(f"PRAGMA max_page_count = {pages}")
    other = account(ledger, [Event(1.0, 1000.0 + i) for i in range(400)])  # a plan that needs another page
    with pytest.raises(InvalidArgument, match="the disk is full.*nothing was released"):
        other.charge(Event(1.0, 1000.0))
    assert (other.spent, other.run) == (0, None)
    assert len(ledger.runs()) == 1
    spending.charge(TOKEN)  # the connection has recovered
    assert ledger.verify() is None
    ledger.close()


def test_a_disk_too_full_for_a_new_ledger_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(chain, "_SCHEMA", ("PRAGMA max_page_count = 1", *chain._SCHEMA))
    with pytest.raises(InvalidArgument, match="disk is full"):
        Ledger.create(tmp_path / "new.sqlite", name="new", rule=GaussianRuns(LIMIT))
    assert list(tmp_path.iterdir()) == []


def test_a_locked_ledger_waits_with_a_message_and_then_gives_up(path, monkeypatch, capsys):
    monkeypatch.setattr(chain, "ATTEMPT", 0.05)
    monkeypatch.setattr(chain, "PATIENCE", 0.3)
    ledger = Ledger.attach(path)
    spending = account(ledger, [TOKEN] * 2)
    spending.charge(TOKEN)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    started = time.monotonic()
    with pytest.raises(InvalidArgument, match="another process has locked it for more than 0.3 s.*nothing released"):
        spending.charge(TOKEN)
    assert 0.3 <= time.monotonic() - started < 5
    assert capsys.readouterr().err.count(f"waiting for the ledger {path}") == 1
    assert spending.spent == 1
    holder.execute("ROLLBACK")
    spending.charge(TOKEN)
    holder.close()
    ledger.close()


def test_a_lock_that_is_lifted_in_time_is_waited_for(path, monkeypatch, capsys):
    monkeypatch.setattr(chain, "ATTEMPT", 0.05)
    ledger = Ledger.attach(path)
    spending = account(ledger, [TOKEN])
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr(chain.time, "sleep", lambda _: holder.in_transaction and holder.execute("ROLLBACK"))
    spending.charge(TOKEN)
    assert "waiting for the ledger" in capsys.readouterr().err
    holder.close()
    ledger.close()


@pytest.mark.usual_pieces
def test_a_charge_costs_a_few_synchronisations_however_long_the_ledger_is(path, tmp_path):
    """2.2 ms on the machine of docs/ledger.md. Compared with plain fsyncs beside it, because a busy disk slows down both."""
    ledger = Ledger.attach(path)
    token = Event(1.0, 1000.0)
    spending = account(ledger, [token] * 2060)
    spending.charge(token)
    with ledger._chain.transaction():
        for step in range(2, 2001):
            ledger._chain.append(1, step, {"sample_rate": 1.0, "noise_multiplier": 1000.0})
    spending = account(ledger, [token] * 2060, identifier=spending.identifier, position=2000)
    charges, plain = [], []
    with (tmp_path / "plain").open("wb") as file:
        for _ in range(60):
            plain.append(seconds(lambda: (file.write(b"x" * 4096), file.flush(), os.fsync(file.fileno()))))
            charges.append(seconds(lambda: spending.charge(token)))
    ledger.close()
    assert statistics.median(charges) < 20 * statistics.median(plain) + 2e-3


def seconds(action):
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def test_a_path_may_be_a_text(tmp_path):
    Ledger.create(str(tmp_path / "one.sqlite")).close()
    assert not list(Ledger.open(str(tmp_path / "one.sqlite")).charges())
