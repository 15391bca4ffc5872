"""Accounts of many people at once: each is the filter that one person alone would have."""

import math

import numpy as np
import pytest

import apportion as ap
from apportion.accounting.individual_accounts import GaussianMeasure, IndividualAccounts, RenyiMeasure, make_levels
from apportion.accounting.renyi import renyi_curve
from apportion.accounting.rules import GaussianFilter, RenyiFilter, charge
from apportion.errors import BudgetExhausted
from apportion.event import Event

BUDGET = ap.Budget(epsilon=2.0, delta=1e-5, unit=ap.Record())
LEVELS = make_levels(0.1, 6)
EVENT = Event(0.1, 1.5)


def filters(people, event=EVENT, steps=40):
    rule = RenyiFilter.around(BUDGET, {event: steps})
    allowed = rule.allowances
    return rule, IndividualAccounts(people, RenyiMeasure(tuple(allowed)), list(allowed.values()), LEVELS)


def test_levels_end_at_exactly_one():
    assert LEVELS[0] == pytest.approx(0.1)
    assert LEVELS[-1] == 1.0
    assert list(LEVELS) == sorted(LEVELS)


def test_bounds_are_rounded_up_and_unknown_ones_are_the_worst_case():
    accounts = filters(6)[1]
    wanted = np.array([0.0, LEVELS[2], LEVELS[2] * 1.0001, 0.999, 7.0, np.inf])
    accounts.bound(wanted)
    assert accounts.scales.tolist() == pytest.approx([LEVELS[0], LEVELS[2], LEVELS[3], 1.0, 1.0, 1.0])
    assert (accounts.scales >= np.minimum(wanted, 1.0)).all()


def test_everybody_has_the_filter_that_one_person_alone_would_have():
    """Whoever is charged, when, and what is left out: as a single Rényi filter with that person's events decides."""
    generator, people = np.random.default_rng(0), 7
    _, accounts = filters(people)
    alone = [filters(1)[0] for _ in range(people)]
    for step in range(200):
        if step % 5 == 0:
            accounts.bound(generator.uniform(0.0, 1.5, people))
        scales, taking = accounts.scales, accounts.charge(EVENT)
        for person in range(people):
            event = Event(EVENT.sample_rate, EVENT.noise_multiplier / scales[person])
            try:
                charge(alone[person], event)
                fits = True
            except BudgetExhausted:
                fits = False
            assert taking[person] == fits, (step, person)
    assert not accounts.charge(EVENT).all()


def test_nobody_ever_exceeds_the_budget():
    _, accounts = filters(50)
    generator = np.random.default_rng(1)
    for _ in range(300):
        accounts.bound(generator.uniform(0.0, 1.2, 50) ** 3)
        accounts.charge(EVENT)
    spent = accounts.state()["spent"]
    allowed = np.array(list(filters(1)[0].allowances.values()))
    alive = accounts.state()["alive"]
    assert (spent <= allowed)[alive].all()
    assert alive.any(axis=1).all(), "an order that bears all that was spent is left to everybody"


def test_short_gradients_last_longer():
    _, accounts = filters(3)
    accounts.bound(np.array([0.1, 0.4, 1.0]))
    taken = np.sum([accounts.charge(EVENT) for _ in range(2000)], axis=0)
    assert taken[0] > taken[1] > taken[2] > 0


def test_without_sampling_the_accounts_are_exact():
    event = Event(1.0, 5.0)
    total = GaussianFilter(BUDGET).total
    accounts = IndividualAccounts(2, GaussianMeasure(), [total], (0.5, 1.0))
    accounts.bound(np.array([0.5, 1.0]))
    taken = np.sum([accounts.charge(event) for _ in range(2000)], axis=0)
    assert taken.tolist() == [math.floor(total / (0.5 / 5) ** 2), math.floor(total / (1 / 5) ** 2)]
    assert accounts.epsilons(BUDGET.delta).max() <= BUDGET.epsilon
    assert accounts.epsilons(BUDGET.delta).min() > 0.95 * BUDGET.epsilon
    with pytest.raises(ap.InvalidArgument, match="without sampling"):
        accounts.charge(Event(0.5, 5.0))


def test_a_step_that_is_not_remembered_is_charged_to_everybody_at_the_worst_case():
    _, accounts = filters(2)
    accounts.bound(np.array([0.1, 1.0]))
    accounts.charge_worst(EVENT)
    spent = accounts.state()["spent"]
    assert (spent[0] == spent[1]).all()
    assert spent[1].tolist() == pytest.approx(renyi_curve(EVENT, tuple(filters(1)[0].allowances)).tolist())
    assert accounts.scales.tolist() == pytest.approx([0.1, 1.0]), "bounds stay"


def test_whoever_cannot_pay_the_worst_case_of_a_forgotten_step_takes_part_no_more():
    """Such a person may have taken part in it with a smaller bound: not to charge it would let the account go beyond the budget."""
    _, accounts = filters(2)
    accounts.bound(np.array([0.1, 1.0]))
    while accounts.charge(EVENT)[1]:
        pass  # until the second cannot pay any more
    before = accounts.state()["spent"].copy()
    accounts.charge_worst(EVENT)
    assert (accounts.state()["spent"] > before).all(), "everybody is charged"
    accounts.bound(np.array([0.1, 0.1]))
    assert accounts.charge(EVENT).tolist() == [True, False]


def test_state_survives():
    _, accounts = filters(4)
    accounts.bound(np.array([0.1, 0.2, 0.5, 1.0]))
    for _ in range(30):
        accounts.charge(EVENT)
    other = filters(4)[1]
    other.restore(accounts.state())
    for _ in range(60):
        assert (other.charge(EVENT) == accounts.charge(EVENT)).all()
    assert other.charges == accounts.charges == 90
