"""Selections in the books: rows survive a file, older rows are read as ever, and what was spent stays spent."""

import json
import math
import subprocess
import sys

import pytest

from apportion import Budget, BudgetExhausted, InvalidArgument, Record
from apportion.accounting.account import Account
from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.accounting.ledger import Ledger
from apportion.accounting.rules import ConcentratedFilter, FixedPlan, Multiset, RenyiFilter
from apportion.accounting.run_filter import GaussianRuns
from apportion.event import Choice, Event

BUDGET = Budget(epsilon=3.0, delta=1e-5, unit=Record())
PLAIN = Event(0.1, 2.0)
EVENTS = (
    PLAIN,
    Event(0.1, math.inf, (Choice(0.5, True),)),
    Event(1.0, math.inf, (Choice(0.1),)),
    Event(0.1, 2.0, (Choice(0.5), Choice(0.25, True), Choice(0.5, True))),
)


def test_events_with_choices_survive_a_file(tmp_path):
    path = tmp_path / "ledger.sqlite"
    account = Account(BUDGET, FixedPlan(EVENTS), Ledger.create(path), identifier="mine")
    for event in EVENTS:
        account.charge(event)
    account.ledger.close()
    read = Ledger.attach(path)
    assert tuple(read.events()) == EVENTS
    assert read.runs()[0].plan == EVENTS
    assert read.counts() == dict.fromkeys(EVENTS, 1)
    assert read.verify() is None
    again = Account(BUDGET, FixedPlan(EVENTS), read, identifier="mine", position=len(EVENTS))
    assert again.left == 0
    assert again.epsilon() == pytest.approx(PrivacyLossAccountant().epsilon(dict.fromkeys(EVENTS, 1), 1e-5))


def test_rows_are_valid_json_and_plain_ones_are_written_as_ever(tmp_path):
    account = Account(BUDGET, FixedPlan(EVENTS), Ledger.create(tmp_path / "ledger.sqlite"))
    for event in EVENTS:
        account.charge(event)

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    rows = [json.loads(row.content, parse_constant=refuse) for row in account.ledger.rows() if row.step > 0]
    assert rows[0] == {"sample_rate": 0.1, "noise_multiplier": 2.0}
    assert rows[1] == {"sample_rate": 0.1, "choices": [{"epsilon": 0.5, "bounded_range": True}]}
    assert set(rows[3]) == {"sample_rate", "noise_multiplier", "choices"}


def test_a_ledger_of_gaussians_is_read_as_ever(tmp_path):
    """The rows of a ledger that was written before there were selections."""
    ledger = Ledger.create(tmp_path / "ledger.sqlite")
    old = {"sample_rate": 0.1, "noise_multiplier": 2.0}
    with ledger._chain.transaction():
        ledger._chain.append(1, 0, {"plan": [{**old, "times": 2}], "cost": [0.0, 0.0], "identifier": "old"})
        ledger._chain.append(1, 1, old)
    again = Account(BUDGET, FixedPlan([PLAIN] * 2), ledger, identifier="old", position=1)
    assert again.spent == 1
    assert list(ledger.events()) == [PLAIN]


@pytest.mark.parametrize(
    "choices",
    ['[{"epsilon": -1.0}]', '[{"epsilon": "a"}]', '[{"epsilon": 0.5, "rho": 0}]', '{"epsilon": 0.5}', "[0.5]", "7"],
)
def test_damaged_choices_are_explained(choices):
    ledger = Ledger.create()
    with ledger._chain.transaction():
        ledger._chain.append(1, 1, {"sample_rate": 0.1, "choices": json.loads(choices)})
    with pytest.raises(InvalidArgument, match="damaged"):
        list(ledger.events())


RULES = {
    "Rényi": (lambda: RenyiFilter(BUDGET, {8.0: 0.5, 14.0: 0.5}), (PLAIN, Event(0.1, math.inf, (Choice(0.4),)))),
    "zCDP": (
        lambda: ConcentratedFilter(BUDGET),
        (Event(1.0, 30.0, (Choice(0.02),)), Event(1.0, math.inf, (Choice(0.05),))),
    ),
    "multiset": (
        lambda: Multiset(dict.fromkeys(EVENTS[:3], 4), BUDGET),
        EVENTS[:3],
    ),
}


def spend_all(account, events):
    """How many charges of `events`, in turn, the account still allows."""
    for count in range(10_000):
        try:
            account.charge(events[count % len(events)])
        except BudgetExhausted:
            return count
    raise AssertionError("it never ends")


@pytest.mark.parametrize("name", RULES)
def test_a_rule_that_is_resumed_from_the_ledger_has_spent_the_same(tmp_path, name):
    build, events = RULES[name]
    whole = spend_all(Account(BUDGET, build(), Ledger.create()), events)
    assert whole >= 8
    first = Account(BUDGET, build(), Ledger.create(tmp_path / "ledger.sqlite"), identifier="mine")
    for number in range(6):
        first.charge(events[number % len(events)])
    first.ledger.close()
    again = Account(BUDGET, build(), Ledger.attach(tmp_path / "ledger.sqlite"), identifier="mine", position=6)
    assert again.spent == 6
    assert spend_all(again, events) == whole - 6


def test_the_account_tells_what_a_filter_would_still_cover():
    account = Account(BUDGET, RenyiFilter(BUDGET, {14.0: 1.0}), Ledger.create())
    assert account.covers(Event(0.1, math.inf, (Choice(0.4),)))
    assert not account.covers(Event(0.1, math.inf, (Choice(100.0),)))
    assert account.spent == 0
    plan = Account(BUDGET, FixedPlan([EVENTS[1]]), Ledger.create())
    assert plan.covers(EVENTS[1])
    assert not plan.covers(Event(0.1, math.inf, (Choice(0.6, True),)))
    with pytest.raises(BudgetExhausted):
        plan.charge(Event(0.1, math.inf, (Choice(0.5),)))  # of no bounded range
    assert plan.spent == 0 == len(list(plan.ledger.events()))


def test_a_limit_over_runs_prices_declared_choices(tmp_path):
    limit = Ledger.create(tmp_path / "data.sqlite", name="patients", rule=GaussianRuns(BUDGET))
    small = Budget(epsilon=1.0, delta=1e-6, unit=Record())
    tokens = {Event(0.1, 4.0, (Choice(0.2),)): 10}
    costs = []
    for declared in (tokens, {Event(0.1, 4.0): 10}):
        account = Account(small, Multiset(declared, small), limit)
        account.charge(next(iter(declared)))
        costs.append(limit.runs()[-1].cost.main)
    assert costs[0] > 1.05 * costs[1]


CRASH = """
import math, os, sys, torch
from pathlib import Path
from torch.nn.functional import cross_entropy
from apportion import Budget, Record
from apportion.accounting.account import Account
from apportion.accounting.ledger import Ledger
from apportion.accounting.rules import RenyiFilter
from apportion.curator.curator import Curator
from apportion.curator.gradients.engine import build_engine
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.releases import Line, LowestLoss
from apportion.request import Request

budget = Budget(epsilon=3.0, delta=1e-5, unit=Record())
account = Account(budget, RenyiFilter(budget, {14.0: 1.0}), Ledger.create(Path(sys.argv[1])), identifier="mine")
model = torch.nn.Linear(2, 2, bias=False)
data = as_records((torch.zeros(9, 2), torch.zeros(9, dtype=torch.long)))
curator = Curator(data, build_engine(model, "vmap"), account, Randomness.fresh())
line = Line({"weight": torch.zeros(2, 2)}, (0.0, 1.0))
request = Request(0.5, math.inf, 4.0, (LowestLoss(line, 1.0, 0.2),))
print(curator.answer(request, cross_entropy).selected[0], flush=True)
curator.open(request)
os._exit(1)  # between the charge and the answer
"""


def test_a_crash_between_the_charge_and_the_answer_burns_the_charge(tmp_path):
    path = tmp_path / "secret/ledger.sqlite"
    path.parent.mkdir()
    done = subprocess.run([sys.executable, "-c", CRASH, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stdout.strip() in ("0", "1")
    ledger = Ledger.attach(path)
    assert list(ledger.events()) == [Event(0.5, math.inf, (Choice(0.2, True),))] * 2
    assert Account(BUDGET, RenyiFilter(BUDGET, {14.0: 1.0}), ledger, identifier="mine").spent == 2
