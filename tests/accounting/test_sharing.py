"""Several runs under one limit: what each may spend is what a ledger admits, and a wasteful rule is named."""

import pytest

import apportion as ap
from apportion.accounting.accountant import count_events
from apportion.accounting.ledger import Ledger
from apportion.accounting.run_filter import GaussianRuns, SumOfRuns
from apportion.accounting.sharing import advise_rule, cheaper_rule, equal_runs, price_together
from apportion.errors import BudgetExhausted, InvalidArgument
from apportion.event import Event

LIMIT = ap.Budget(epsilon=2.0, delta=1e-6, unit=ap.Record())
FEW = {Event(0.004, 0.7): 3}
MANY = {Event(0.1, 9.0): 100}


def events(epsilon, **sampling):
    budget = ap.Budget(epsilon=epsilon, delta=LIMIT.delta, unit=ap.Record())
    return count_events(ap.plan("abadi", budget=budget, population=4000, **sampling).tokens)


def admit(ledger, plan):
    budget = ap.Budget(epsilon=LIMIT.epsilon, delta=LIMIT.delta, unit=ap.Record())
    cost = ledger.price(plan, budget)
    ledger.require_room(cost, plan)
    ledger.admit([event for event, times in plan.items() for _ in range(times)], cost)


@pytest.mark.parametrize(
    "sampling",
    [pytest.param({"sample_rate": 0.1, "steps": 100}, marks=pytest.mark.slow), {"sample_rate": 0.05, "steps": 10}],
)
def test_a_ledger_admits_as_many_equal_runs_and_no_larger_ones(sampling):
    each = equal_runs(lambda epsilon: events(epsilon, **sampling), LIMIT, 3)
    ledger = Ledger.create(name="mine", rule=GaussianRuns(LIMIT))
    for _ in range(3):
        admit(ledger, events(each, **sampling))
    ledger = Ledger.create(name="mine", rule=GaussianRuns(LIMIT))
    larger = events(1.03 * each, **sampling)
    admit(ledger, larger)
    admit(ledger, larger)
    with pytest.raises(BudgetExhausted):
        admit(ledger, larger)


def test_five_equal_runs_on_all_records_get_a_little_more_than_by_root_five():
    from apportion.accounting.gaussian import gaussian_mu

    each = equal_runs(lambda epsilon: {Event(1.0, 1 / gaussian_mu(epsilon, LIMIT.delta)): 1}, LIMIT, 5)
    assert 0.995 * 0.8352 < each < 0.8352  # ε of N(M/√5, 1), less the search's half per cent
    alone = equal_runs(lambda epsilon: {Event(1.0, 1 / gaussian_mu(epsilon, LIMIT.delta)): 1}, LIMIT, 1)
    assert 1.98 < alone <= LIMIT.epsilon


def test_the_number_of_runs_is_a_whole_number():
    with pytest.raises(InvalidArgument, match="runs"):
        equal_runs(lambda epsilon: MANY, LIMIT, 0)


def test_few_steps_are_cheaper_by_the_sum_and_many_by_the_gaussian():
    few, many = price_together([FEW], LIMIT), price_together([MANY] * 3, LIMIT)
    assert few["sum"] < 0.95 * few["gaussian"]
    assert many["gaussian"] < 0.95 * many["sum"]


@pytest.mark.parametrize(
    ("rule", "plans", "named"),
    [(GaussianRuns, [FEW], "sum"), (SumOfRuns, [MANY] * 3, "gaussian"), (GaussianRuns, [MANY] * 3, None)],
)
def test_a_wasteful_rule_is_named_with_the_cheaper_one(rule, plans, named):
    ledger = Ledger.create(name="mine", rule=rule(ap.Budget(epsilon=9.0, delta=1e-5, unit=ap.Record())))
    assert advise_rule(ledger) is None
    for plan in plans:
        admit(ledger, plan)
    said = advise_rule(ledger)
    if named is None:
        assert said is None
    else:
        best, taken = cheaper_rule(ledger)
        assert best == named
        assert f"The rule {rule.name} is wasteful" in said
        assert f"--rule {named}" in said
        assert f"takes ε = {taken[rule.name]:.4g} of the limit" in said
        assert "would forget what was spent" in said


def test_a_refusal_names_the_cheaper_rule():
    ledger = Ledger.create(name="mine", rule=GaussianRuns(ap.Budget(epsilon=0.5, delta=1e-6, unit=ap.Record())))
    with pytest.raises(BudgetExhausted, match="Nothing was charged.*The rule gaussian is wasteful.*--rule sum"):
        admit(ledger, FEW)


def test_of_searches_and_single_runs_nothing_is_said():
    ledger = Ledger.create(name="mine", rule=SumOfRuns(LIMIT))
    admit(ledger, FEW)
    ledger.admit([], ledger.price(FEW, LIMIT).minus(ledger.capacity), terms="a search")
    assert cheaper_rule(ledger) is None
    assert cheaper_rule(Ledger.create()) is None
