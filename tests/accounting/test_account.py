import sqlite3
import subprocess
import sys
from dataclasses import replace

import pytest

from apportion import Budget, BudgetExhausted, InvalidArgument, Record
from apportion.accounting.account import Account
from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.accounting.ledger import Ledger
from apportion.accounting.rules import ConcentratedFilter, FixedPlan, GaussianFilter, Multiset, RenyiFilter
from apportion.accounting.run_filter import Cost, GaussianRuns, SumOfRuns
from apportion.event import Event

BUDGET = Budget(epsilon=3.0, delta=1e-5, unit=Record())
TOKEN = Event(0.1, 2.0)


def account(tokens, path=None):
    return Account(BUDGET, FixedPlan(tokens), Ledger.create(path))


def test_tokens_are_spent_and_then_refused(tmp_path):
    spending = account([TOKEN] * 2, tmp_path / "ledger.sqlite")
    spending.charge(TOKEN)
    spending.charge(TOKEN)
    with pytest.raises(BudgetExhausted, match="2 steps are spent"):
        spending.charge(TOKEN)
    assert list(Ledger.open(tmp_path / "ledger.sqlite").events()) == [TOKEN, TOKEN]


@pytest.mark.parametrize("event", [Event(0.1, 1.99), Event(0.11, 2.0)])
def test_an_event_beyond_its_token_is_refused_and_nothing_is_written(event):
    spending = account([TOKEN])
    with pytest.raises(BudgetExhausted, match="the plan declared"):
        spending.charge(event)
    assert list(spending.ledger.events()) == []
    assert spending.left == 1


def test_more_noise_than_declared_is_covered_and_priced_as_executed():
    spending = account([TOKEN])
    spending.charge(Event(0.1, 4.0))
    assert spending.epsilon() < spending.planned_epsilon()


def test_reading_epsilon_changes_nothing():
    spending = account([TOKEN] * 3)
    spending.charge(TOKEN)
    readings = {spending.epsilon() for _ in range(3)}
    assert len(readings) == 1
    assert spending.spent == 1
    assert spending.epsilon(1e-7) > spending.epsilon(1e-5)


def test_the_ledger_is_append_only(tmp_path):
    path = tmp_path / "ledger.sqlite"
    account([TOKEN], path).charge(TOKEN)
    connection = sqlite3.connect(path)
    for statement in ("DELETE FROM entries", "UPDATE entries SET content = '{}'"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute(statement)
    connection.close()


def test_a_charge_survives_a_process_that_dies_at_once(tmp_path):
    path = tmp_path / "ledger.sqlite"
    program = (
        "import os, sys; from pathlib import Path; from apportion.accounting.ledger import Ledger;"
        "from apportion.request import Event; Ledger.create(Path(sys.argv[1])).append(Event(0.1, 2.0), 1, 1); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(path)], check=False).returncode == 9
    assert list(Ledger.open(path).events()) == [TOKEN]


def test_a_copy_holds_the_same_charges(tmp_path):
    plan = [TOKEN, Event(0.2, 1.0)]
    spending = account(plan)
    for event in plan:
        spending.charge(event)
    spending.ledger.copy_to(tmp_path / "deep" / "copy.sqlite", spending.run)
    copy = Ledger.open(tmp_path / "deep" / "copy.sqlite")
    assert list(copy.events()) == plan
    assert copy.runs()[0].plan == tuple(plan)
    assert copy.verify() is None


def test_a_file_that_is_no_ledger_is_refused(tmp_path):
    path = tmp_path / "ledger.sqlite"
    path.write_text("this is not a database, and never was one: " * 50)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        Ledger.open(path)
    with pytest.raises(InvalidArgument, match="earlier run already"):
        Ledger.create(path)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        Ledger.open(tmp_path / "missing.sqlite")


def test_a_ledger_serves_one_account(tmp_path):
    spending = account([TOKEN], tmp_path / "ledger.sqlite")
    spending.charge(TOKEN)
    with pytest.raises(InvalidArgument, match="charges of an earlier run"):
        Account(BUDGET, FixedPlan([TOKEN]), spending.ledger)


def test_under_a_rule_with_choices_the_guarantee_is_that_of_the_rule():
    """The price of the path that was taken is smaller, and no guarantee."""
    weak, strong = Event(0.1, 4.0), Event(0.1, 2.0)
    multiset = Account(BUDGET, Multiset({weak: 5, strong: 5}, BUDGET), Ledger.create())
    multiset.charge(weak)
    assert multiset.epsilon() == multiset.planned_epsilon() > PrivacyLossAccountant().epsilon({weak: 1}, BUDGET.delta)
    filtered = Account(BUDGET, RenyiFilter(BUDGET, {14.0: 1.0}), Ledger.create())
    filtered.charge(weak)
    assert filtered.epsilon() == BUDGET.epsilon
    with pytest.raises(InvalidArgument, match="larger ones only"):
        filtered.epsilon(1e-9)


def test_every_rule_is_executed_by_the_account(tmp_path):
    """Charges are written before they count, under numbers of their own, and what the rule refuses is not written."""
    strong = Event(1.0, 30.0)
    rules = [
        FixedPlan([strong] * 2),
        Multiset({strong: 2}, BUDGET),
        RenyiFilter(BUDGET, {14.0: 1.0}),
        GaussianFilter(BUDGET),
        ConcentratedFilter(BUDGET),
    ]
    for number, rule in enumerate(rules):
        spending = Account(BUDGET, rule, Ledger.create(tmp_path / f"{number}.sqlite"))
        spending.charge(strong)
        spending.charge(Event(1.0, 40.0))
        assert [token for token, _ in spending.ledger.charges()] == [1, 2]
        with pytest.raises(BudgetExhausted):
            spending.charge(Event(1.0, 0.01))
        assert spending.spent == 2 == len(list(spending.ledger.charges()))


def test_a_filter_promises_one_point_of_its_curve_which_the_gaussian_rule_cannot_add_up(tmp_path):
    limit = Ledger.create(tmp_path / "data.sqlite", name="patients", rule=GaussianRuns(BUDGET))
    with pytest.raises(InvalidArgument, match=r"promises one point.*rule sum"):
        Account(BUDGET, RenyiFilter(BUDGET, {14.0: 1.0}), limit)


def test_a_filter_costs_its_whole_promise_under_the_sum_rule(tmp_path):
    twice = replace(BUDGET, epsilon=2.5 * BUDGET.epsilon, delta=2.5 * BUDGET.delta)
    limit = Ledger.create(tmp_path / "data.sqlite", name="patients", rule=SumOfRuns(twice))
    for run in (1, 2):
        account = Account(BUDGET, RenyiFilter(BUDGET, {14.0: 1.0}), limit)
        account.charge(Event(0.01, 20.0))  # little: what counts is what it may spend
        assert limit.spent() == Cost(run * BUDGET.epsilon, run * BUDGET.delta)
    with pytest.raises(BudgetExhausted, match="does not cover this run"):
        Account(BUDGET, RenyiFilter(BUDGET, {14.0: 1.0}), limit)


def test_a_resumed_account_tells_its_rule_what_was_spent():
    ledger, tokens = Ledger.create(), [TOKEN] * 4
    first = Account(BUDGET, FixedPlan(tokens, spare=1), ledger, identifier="mine")
    first.charge(TOKEN)
    first.position = 0
    first.charge(TOKEN)  # again, with the spare token
    again = Account(BUDGET, FixedPlan(tokens, spare=1), ledger, identifier="mine", position=0)
    assert again.rule.spares_left == 0
    assert again.next_step == 2
    again.charge(TOKEN)
    assert [token for token, _ in ledger.charges()] == [1, 4, 2]


@pytest.mark.parametrize("rule", [FixedPlan([TOKEN] * 4), Multiset({TOKEN: 4}, BUDGET)], ids=["plan", "multiset"])
def test_a_token_that_was_never_declared_pays_for_nothing(rule):
    ledger = Ledger.create()
    spending = Account(BUDGET, rule, ledger, identifier="mine")
    spending.charge(TOKEN)
    for token in (0, -1, -2, 5, 99):
        with pytest.raises(BudgetExhausted, match="never declared"):
            spending.charge_token(token, TOKEN)
    assert [row.step for row in ledger.rows() if row.run] == [0, 1]


def test_no_token_pays_for_a_step_before_the_first():
    ledger = Ledger.create()
    Account(BUDGET, FixedPlan([TOKEN] * 4), ledger, identifier="mine").charge(TOKEN)
    back = Account(BUDGET, FixedPlan([TOKEN] * 4), ledger, identifier="mine", position=-3)
    with pytest.raises(BudgetExhausted, match="never declared"):
        back.charge(TOKEN)
    assert [row.step for row in ledger.rows() if row.run] == [0, 1]


def test_a_run_does_not_go_on_under_a_rule_that_allows_more_than_its_budget():
    ledger = Ledger.create()
    Account(BUDGET, GaussianFilter(BUDGET), ledger, identifier="mine").charge(Event(1.0, 20.0))
    larger = GaussianFilter(Budget(epsilon=50.0, delta=1e-5, unit=Record()))
    with pytest.raises(BudgetExhausted, match="more than the budget"):
        Account(BUDGET, larger, ledger, identifier="mine", position=1)


def test_a_run_goes_on_under_the_terms_of_its_rule():
    """Which filter, and with which weights, was decided before anything was released."""
    ledger, weights = Ledger.create(), {14.0: 1.0}
    Account(BUDGET, RenyiFilter(BUDGET, weights), ledger, identifier="mine").charge(TOKEN)
    assert Account(BUDGET, RenyiFilter(BUDGET, weights), ledger, identifier="mine", position=1).spent == 1
    smaller = Budget(epsilon=2.5, delta=1e-5, unit=Record())
    for other in (RenyiFilter(BUDGET, {8.0: 1.0}), RenyiFilter(smaller, weights), GaussianFilter(BUDGET)):
        with pytest.raises(InvalidArgument, match="with another plan"):
            Account(BUDGET, other, ledger, identifier="mine", position=1)


def test_accounting_imports_no_torch():
    program = (
        "import sys, apportion.accounting.account, apportion.accounting.calibration, apportion.accounting.ledger;"
        "from apportion.accounting.accountant import PrivacyLossAccountant; from apportion.request import Event;"
        "assert PrivacyLossAccountant().epsilon({Event(0.1, 2.0): 3}, 1e-5) > 0; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
