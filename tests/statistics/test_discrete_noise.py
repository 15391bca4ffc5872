"""Noise on whole numbers has the law that it claims."""

from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chisquare

from apportion.curator.randomness import Randomness
from apportion.statistics.discrete_noise import discrete_laplace_variance, draw_below, draw_discrete_laplace

DRAWS = 20_000


def masses(scale, edge):
    """P[|x| = k] for k < edge, and the rest."""
    alpha = np.exp(-1 / scale)
    sizes = (1 - alpha) / (1 + alpha) * alpha ** np.arange(edge) * np.where(np.arange(edge), 2, 1)
    return np.append(sizes, 1 - sizes.sum())


def p_value(draws, scale):
    edge = max(2, int(4 * scale))
    counts = np.bincount(np.minimum(np.abs(draws), edge), minlength=edge + 1)
    return chisquare(counts, len(draws) * masses(scale, edge)).pvalue


@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(1), Fraction(7, 3), 1 / Fraction(0.1)])
def test_draws_follow_the_law_and_not_one_that_is_narrower(scale):
    stream = Randomness.seeded(1).next_draw().noise
    draws = np.array([draw_discrete_laplace(scale, stream) for _ in range(DRAWS)])
    assert p_value(draws, float(scale)) > 0.01
    assert p_value(draws, float(scale) * 1.05) < 1e-3, "20,000 draws would not show noise that is 5 % too small"
    assert p_value(draws, float(scale) / 1.05) < 1e-3
    positive = np.count_nonzero(draws > 0) - np.count_nonzero(draws < 0)
    assert abs(positive) < 4 * np.sqrt(DRAWS)
    assert draws.var() == pytest.approx(discrete_laplace_variance(float(scale)), rel=0.08)


def test_the_variance_is_that_of_the_law():
    for scale in (0.3, 1.0, 50.0):
        x = np.arange(-4000, 4001)
        law = np.tanh(0.5 / scale) * np.exp(-np.abs(x) / scale)
        assert discrete_laplace_variance(scale) == pytest.approx((law * x**2).sum(), rel=1e-9)


@pytest.mark.parametrize("bound", [1, 2, 3, 10, 2**64 + 1])
def test_whole_numbers_below_a_bound_are_uniform(bound):
    stream = Randomness.seeded(2).next_draw().noise
    draws = [draw_below(bound, stream) for _ in range(3000)]
    assert 0 <= min(draws) <= max(draws) < bound
    if bound <= 10:
        assert bound == 1 or chisquare(np.bincount(draws, minlength=bound)).pvalue > 0.01
    else:
        assert max(draws) > 0.99 * bound


def test_tiny_budgets_have_noise_that_no_machine_number_holds():
    stream = Randomness.seeded(3).next_draw().noise
    assert abs(draw_discrete_laplace(1 / Fraction(1e-30), stream)) > 2**64
