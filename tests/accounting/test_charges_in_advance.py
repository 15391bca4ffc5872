"""Tokens that are charged in advance are spent from then on: whoever crashes forfeits them, and nobody uses one twice."""

import os

import pytest

from apportion import Budget, BudgetExhausted, Record
from apportion.accounting import account as accounts
from apportion.accounting.account import Account
from apportion.accounting.ledger import Ledger
from apportion.accounting.rules import FixedPlan, GaussianFilter, Multiset
from apportion.event import Event

BUDGET = Budget(epsilon=3.0, delta=1e-5, unit=Record())
TOKEN = Event(0.01, 2.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


def opened(path, steps=8, spare=4, kept=1, **named):
    ledger = Ledger.attach(path) if path.exists() else Ledger.create(path)
    return Account(BUDGET, FixedPlan([TOKEN] * (steps + spare), spare), ledger, kept_spare=kept, **named)


def rows(path):
    return [token for token, _ in Ledger.open(path).charges()]


def test_the_next_tokens_are_charged_with_the_first(path):
    spending = opened(path)
    spending.charge(TOKEN)
    assert rows(path) == [1, 2, 3], "four spare ones, of which one is kept"
    spending.charge(TOKEN)
    spending.charge(TOKEN)
    assert rows(path) == [1, 2, 3]
    spending.charge(TOKEN)
    assert rows(path) == [1, 2, 3, 4, 5, 6]
    assert spending.position == 4


@pytest.mark.parametrize(
    ("spare", "kept", "first"), [(0, 0, 1), (3, 3, 1), (1, 3, 1), (2, 1, 1), (3, 1, 2), (3, None, 1)]
)
def test_no_more_than_spare_ones_can_replace(path, spare, kept, first):
    spending = opened(path, spare=spare, kept=kept)
    spending.charge(TOKEN)
    assert rows(path) == list(range(1, first + 1))


def test_no_more_than_a_block(path, monkeypatch):
    monkeypatch.setattr(accounts, "BLOCK", 2)
    spending = opened(path)
    spending.charge(TOKEN)
    assert rows(path) == [1, 2]


def test_none_beyond_the_end(path):
    spending = opened(path, steps=4)
    for _ in range(4):
        spending.charge(TOKEN)
    assert rows(path) == [1, 2, 3, 4]
    with pytest.raises(BudgetExhausted, match="4 steps are spent"):
        spending.charge(TOKEN)


@pytest.mark.parametrize("used", [1, 2, 3, 4, 5])
def test_after_a_crash_all_of_them_are_spent(path, used):
    first = opened(path)
    for _ in range(used):
        first.charge(TOKEN)
    known = first.identifier
    first.ledger.close()
    again = opened(path, identifier=known, position=used - 1)  # the checkpoint is one step old
    assert again.spent == len(rows(path)) >= used
    executed = 0
    while again.left:
        again.charge(TOKEN)
        executed += 1
        assert again.spent == len(rows(path)) <= 12
    assert used + executed <= again.spent, "every draw has a token of its own"
    assert again.position == 8, "there were enough spare ones for the whole plan"


def test_what_is_charged_is_what_the_ledger_says(path):
    spending = opened(path)
    spending.charge(TOKEN)
    assert spending.spent == 3
    before = spending.epsilon()
    spending.reload()
    assert (spending.spent, spending.epsilon()) == (3, before)
    spending.charge(TOKEN)
    assert rows(path) == [1, 2, 3], "reading it has burnt nothing"


def test_an_event_that_is_not_covered_uses_none(path):
    spending = opened(path)
    spending.charge(TOKEN)
    with pytest.raises(BudgetExhausted, match="is spent|declared"):
        spending.charge(Event(0.01, 1.9))
    assert not spending.covers(Event(0.01, 1.9))
    assert spending.covers(TOKEN)
    spending.charge(Event(0.01, 2.5))
    assert rows(path) == [1, 2, 3]


def test_a_copy_of_the_process_cannot_use_them(path, monkeypatch):
    spending = opened(path, spare=6)
    spending.charge(TOKEN)
    monkeypatch.setattr(os, "getpid", lambda: 1)  # as after fork
    assert rows(path) == [1, 2, 3, 4, 5]
    spending.charge(TOKEN)
    assert rows(path)[5:] != [], "it pays for its own"
    assert spending.find_token(TOKEN) not in range(1, 6)


def test_of_a_multiset_tokens_of_the_same_level(path):
    loud, quiet = Event(0.01, 2.0), Event(0.01, 3.0)
    rule = Multiset({loud: 6, quiet: 6}, BUDGET, steps=8)
    spending = Account(BUDGET, rule, Ledger.create(path), kept_spare=1)
    charges = lambda: [event for _, event in Ledger.open(path).charges()]  # noqa: E731
    spending.charge(quiet)
    assert charges() == [quiet] * 3
    spending.charge(loud)
    assert charges() == [*[quiet] * 3, loud]
    for _ in range(2):
        spending.charge(quiet)
    assert charges() == [*[quiet] * 3, loud], "those of the first level were still there"
    assert sum(rule.left.values()) == 8


def test_a_filter_charges_one_by_one(path):
    spending = Account(BUDGET, GaussianFilter(BUDGET, steps=5), Ledger.create(path), kept_spare=1)
    spending.charge(Event(1.0, 9.0))
    assert rows(path) == [1]
