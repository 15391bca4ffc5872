"""One filter for each group: what a query costs, and that nothing is asked that would exceed any of them."""

import math

import numpy as np
import pytest

import apportion as ap
from apportion.accounting.account import Account
from apportion.accounting.gaussian import gaussian_epsilon, gaussian_mu
from apportion.accounting.ledger import Ledger
from apportion.errors import BudgetExhausted, InvalidArgument
from apportion.teachers.aggregation import Mechanism
from apportion.teachers.group_filter import GroupFilter

TEACHERS, QUERIES = 15, 40


def rule_for(variant, budget, mechanism, queries=QUERIES):
    ensemble = variant.arrange(budget.groups, budget.delta, TEACHERS)
    return GroupFilter(budget, ensemble, mechanism, queries), ensemble


def spend_all(rule, tokens):
    """Charge tokens until one is refused; how many were charged."""
    for done, token in enumerate(tokens):
        try:
            rule.require(token, 1, rule.event(token))
        except BudgetExhausted:
            return done
        rule.spend(token, rule.event(token))
    return len(tokens)


ANSWERS = range(2, 2 * QUERIES + 1, 2)
BOTH = range(1, 2 * QUERIES + 1)


def spent_by_hand(ensemble, mechanism, tokens):
    """μ² of each account, from the formulas."""
    total = np.zeros(len(ensemble.budgets()))
    for token in tokens:
        s = ensemble.sensitivities((token - 1) // 2)
        total += (s / mechanism.check_sigma) ** 2 if token % 2 else (math.sqrt(2) * s / mechanism.sigma) ** 2
    return total


@pytest.mark.parametrize("mechanism", [Mechanism(9.0), Mechanism(9.0, 25.0, 9.0)], ids=["gnmax", "confident"])
def test_it_stops_before_any_group_exceeds_its_budget(variant, three, mechanism):
    tokens = ANSWERS if mechanism.check_sigma is None else BOTH
    rule, ensemble = rule_for(variant, three, mechanism)
    done = spend_all(rule, tokens)
    if mechanism.check_sigma is not None:
        assert done % 2 == 0, "a check was charged whose answer does not fit"
    size = 1 if mechanism.check_sigma is None else 2
    allowed = np.array([gaussian_mu(epsilon, three.delta) ** 2 for epsilon in ensemble.budgets()])
    assert (spent_by_hand(ensemble, mechanism, tokens[:done]) <= allowed).all()
    assert 0 < done < len(tokens)
    assert (spent_by_hand(ensemble, mechanism, tokens[: done + size]) > allowed).any(), "it stopped too early"
    for number, group in enumerate(three.groups):
        found = spent_by_hand(ensemble, mechanism, tokens[:done])[list(ensemble.accounts_of(number))].max()
        assert rule.spent_epsilon(number) == pytest.approx(gaussian_epsilon(math.sqrt(found), three.delta), rel=1e-9)
        assert rule.spent_epsilon(number) <= group.epsilon


@pytest.mark.parametrize("binding", [0, 1, 2])
def test_every_group_can_be_the_one_that_stops_it(binding):
    budgets = {name: (0.6 if number == binding else 6.0, 1 / 3) for number, name in enumerate("abc")}
    budget = ap.Budget.of_groups(budgets, delta=1e-5, unit=ap.Record())
    rule, _ = rule_for(ap.teachers.Upsampling(most_copies=1), budget, Mechanism(20.0))
    done = spend_all(rule, ANSWERS)
    assert done == math.floor(gaussian_mu(0.6, 1e-5) ** 2 * 20**2 / 2)
    spent = [rule.spent_epsilon(number) for number in range(3)]
    assert spent == pytest.approx([spent[0]] * 3)
    assert 0.5 < spent[binding] <= 0.6


def test_the_last_query_that_fits_is_decided_by_the_last_bits(three):
    ensemble = ap.teachers.Weighting().arrange(three.groups, three.delta, TEACHERS)
    smallest = math.sqrt(
        max(
            2 * 10 * w**2 / gaussian_mu(e, three.delta) ** 2
            for w, e in zip(ensemble.weights, ensemble.budgets(), strict=True)
        )
    )
    for factor, expected in ((1 + 1e-9, 10), (1 - 1e-9, 9)):
        rule = GroupFilter(three, ensemble, Mechanism(smallest * factor), QUERIES)
        assert spend_all(rule, ANSWERS) == expected


def test_the_default_noise_lets_all_queries_fit_and_no_more(variant, three):
    ensemble = variant.arrange(three.groups, three.delta, TEACHERS)
    for aggregation in (ap.teachers.GNMax(), ap.teachers.ConfidentGNMax(), ap.teachers.ConfidentGNMax(check_sigma=90)):
        mechanism = aggregation.mechanism(ensemble, three.delta, QUERIES, TEACHERS)
        tokens = ANSWERS if mechanism.check_sigma is None else BOTH
        assert spend_all(GroupFilter(three, ensemble, mechanism, QUERIES), tokens) == len(tokens)
        less = Mechanism(0.98 * mechanism.sigma, mechanism.check_sigma, mechanism.threshold)
        assert spend_all(GroupFilter(three, ensemble, less, QUERIES), tokens) < len(tokens)


def test_a_threshold_above_the_teachers_and_checks_that_cost_too_much_are_refused(three):
    ensemble = ap.teachers.Weighting().arrange(three.groups, three.delta, TEACHERS)
    with pytest.raises(InvalidArgument, match="threshold=16.0: no class can have more votes"):
        ap.teachers.ConfidentGNMax(threshold=16).mechanism(ensemble, three.delta, QUERIES, TEACHERS)
    with pytest.raises(InvalidArgument, match="checks with so little noise"):
        ap.teachers.ConfidentGNMax(check_sigma=1).mechanism(ensemble, three.delta, QUERIES, TEACHERS)


def test_the_event_is_that_of_those_who_can_move_the_most_votes(variant, three):
    rule, ensemble = rule_for(variant, three, Mechanism(14.0, 30.0, 9.0))
    for query in range(5):
        largest = ensemble.sensitivities(query).max()
        check, answer = rule.event(2 * query + 1), rule.event(2 * query + 2)
        assert (check.sample_rate, check.noise_multiplier) == (1.0, pytest.approx(30 / largest))
        assert (answer.sample_rate, answer.noise_multiplier) == (1.0, pytest.approx(14 / (math.sqrt(2) * largest)))


def test_tokens_are_spent_in_order_once_and_for_what_they_are(three):
    rule, _ = rule_for(ap.teachers.Weighting(), three, Mechanism(50.0, 60.0, 9.0))
    with pytest.raises(BudgetExhausted, match="needs its check first"):
        rule.require(2, 1, rule.event(2))
    with pytest.raises(BudgetExhausted, match="something else"):
        rule.require(1, 1, rule.event(2))
    rule.spend(1, rule.event(1))
    with pytest.raises(BudgetExhausted, match="is spent"):
        rule.require(1, 1, rule.event(1))
    rule.require(2, 1, rule.event(2))
    rule.require(3, 1, rule.event(3))
    with pytest.raises(BudgetExhausted, match="never declared"):
        rule.require(2 * QUERIES + 1, 1, rule.event(2 * QUERIES + 1))
    plain, _ = rule_for(ap.teachers.Weighting(), three, Mechanism(50.0))
    with pytest.raises(BudgetExhausted, match="no check was declared"):
        plain.event(1)


def test_a_run_promises_its_budgets_and_goes_on_under_the_same_terms_only(three, tmp_path):
    rule, _ = rule_for(ap.teachers.Weighting(), three, Mechanism(50.0))
    assert rule.epsilon(three.delta) == three.epsilon == 5.0
    with pytest.raises(InvalidArgument, match="and larger ones only"):
        rule.epsilon(three.delta / 2)
    ledger = Ledger.create(tmp_path / "run" / "ledger.sqlite")
    account = Account(three, rule, ledger, identifier="one")
    account.charge_token(2, rule.event(2))
    account.charge_token(6, rule.event(6))
    again, _ = rule_for(ap.teachers.Weighting(), three, Mechanism(50.0))
    resumed = Account(three, again, ledger, identifier="one")
    assert (again.last, resumed.spent) == (6, 2)
    assert again.spent_epsilon(0) == rule.spent_epsilon(0) > 0
    for variant, mechanism in ((ap.teachers.Vanishing(), Mechanism(50.0)), (ap.teachers.Weighting(), Mechanism(51.0))):
        other, _ = rule_for(variant, three, mechanism)
        with pytest.raises(InvalidArgument, match="another plan"):
            Account(three, other, ledger, identifier="one")
    ledger.close()
