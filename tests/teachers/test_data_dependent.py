"""The secret, data-dependent cost: a bound, never above the public one, and far below it where teachers agree."""

import math

import numpy as np
import pytest
from scipy.stats import norm

import apportion as ap
from apportion.teachers.aggregation import Mechanism
from apportion.teachers.data_dependent import LABEL, DataDependentCost, answer_curve

ORDERS = np.array([1.5, 2.0, 4.0, 8.0, 16.0, 32.0])


def renyi(p, q, order):
    """Of two distributions on two answers."""
    terms = [order * math.log(a) + (1 - order) * math.log(b) for a, b in zip(p, q, strict=True)]
    return np.logaddexp(*terms) / (order - 1)


@pytest.mark.parametrize("sensitivity", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("gap", [0.0, 5.0, 20.0, 60.0, 120.0])
def test_it_bounds_the_divergence_of_two_answers(gap, sensitivity):
    """For two classes the answers' probabilities are known: Φ(±gap/(√2·σ)), and a neighbour moves the gap by at most 2s."""
    sigma = 12.0
    curve = answer_curve(np.array([60 + gap / 2, 60 - gap / 2]), sigma, sensitivity, ORDERS)

    def answers(at):
        return norm.cdf(at / (math.sqrt(2) * sigma)), norm.sf(at / (math.sqrt(2) * sigma))

    for moved in (-2 * sensitivity, -sensitivity, 2 * sensitivity):
        for order, bound in zip(ORDERS, curve, strict=True):
            assert renyi(answers(gap), answers(gap + moved), order) <= bound * (1 + 1e-9)


def test_it_is_never_above_the_public_price_and_far_below_for_unanimous_votes():
    random, unanimous = np.random.default_rng(0), np.array([250.0] + [0.0] * 9)
    for _ in range(100):
        counts = random.multinomial(250, random.dirichlet(np.ones(10) * 0.3)).astype(float)
        for sigma, s in ((5.0, 1.0), (40.0, 1.0), (40.0, 4.0)):
            assert (answer_curve(counts, sigma, s, ORDERS) <= ORDERS * s**2 / sigma**2 * (1 + 1e-12)).all()
    assert (answer_curve(unanimous, 20.0, 1.0, ORDERS) < 1e-6 * ORDERS / 20**2).all()
    split = np.array([125.0, 125.0])
    assert answer_curve(split, 20.0, 1.0, ORDERS) == pytest.approx(ORDERS / 20**2)
    assert not answer_curve(unanimous, 20.0, 0.0, ORDERS).any()


def test_a_number_by_hand():
    """σ = 40 and 200 of 250 votes, in the printed formula."""
    counts, sigma, order = np.array([200.0, 50.0] + [0.0] * 8), 40.0, 8.0
    q = 0.5 * math.erfc(150 / 80) + 8 * 0.5 * math.erfc(200 / 80)
    a2 = sigma * math.sqrt(math.log(1 / q))
    a1, e1, e2 = a2 + 1, (a2 + 1) / sigma**2, a2 / sigma**2
    big_a = (1 - q) / (1 - (q * math.exp(e2)) ** (1 - 1 / a2))
    big_b = math.exp(e1) * q ** (-1 / (a1 - 1))
    expected = math.log((1 - q) * big_a ** (order - 1) + q * big_b ** (order - 1)) / (order - 1)
    assert expected < order / sigma**2
    assert answer_curve(counts, sigma, 1.0, np.array([order]))[0] == pytest.approx(expected, rel=1e-9)


def test_the_cost_of_a_group_is_labelled_and_no_larger_than_the_public_one(three):
    ensemble = ap.teachers.Upsampling().arrange(three.groups, three.delta, 50)
    cost = DataDependentCost(ensemble, Mechanism(40.0, 100.0, 60.0))
    for query in range(20):
        cost.add_check(query)
        cost.add_answer(query, np.array([105.0, 0.0, 0.0]))
    found = cost.describe(three.delta, [1.0, 2.0, 0.001])
    assert found["label"] == LABEL
    assert "NOT PUBLISHABLE" in LABEL
    strict, medium, loose = (one["data_dependent_epsilon"] for one in found["groups"])
    assert 0 < strict < medium
    assert loose == 0.001
