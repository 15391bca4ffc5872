"""The arithmetic of the statistical audit: known figures, coverage at the stated confidence, and bounds that bite."""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.accounting.gaussian import gaussian_delta, gaussian_epsilon
from apportion.audit.bounds import ErrorRates, one_run_epsilon, trade_off, upper_bound
from apportion.event import Event


@pytest.mark.parametrize(
    ("canaries", "guesses", "expected"),
    [
        (100, 100, 3.49),
        (1_000, 1_000, 5.78),
        (10_000, 10_000, 7.83),
        (100, 10, 1.05),
        (1_000, 100, 3.47),
        (10_000, 1_000, 5.53),
    ],
)
def test_one_run_bound_of_perfect_guesses(canaries, guesses, expected):
    bound = one_run_epsilon(canaries=canaries, guesses=guesses, correct=guesses, delta=1e-5, confidence=0.95)
    assert bound == pytest.approx(expected, abs=0.006)


def test_one_run_bound_without_delta_is_the_binomial_tail():
    """With δ → 0 the refuted ε is the one at which r right guesses have probability 5 %: p^r = 0.05."""
    p = 0.05 ** (1 / 20)
    bound = one_run_epsilon(canaries=20, guesses=20, correct=20, delta=1e-15, confidence=0.95)
    assert bound == pytest.approx(math.log(p / (1 - p)), abs=1e-6)


def test_one_run_bound_falls_with_errors_with_delta_and_with_confidence():
    def bound(correct=90, delta=1e-5, confidence=0.95):
        return one_run_epsilon(canaries=100, guesses=100, correct=correct, delta=delta, confidence=confidence)

    bounds = [bound(correct=correct) for correct in (100, 90, 75, 60, 50, 0)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[3] > 0
    assert bounds[4] == bounds[5] == 0
    assert bound(delta=1e-3) < bound() < bound(delta=1e-9)
    assert bound(confidence=0.99) < bound() < bound(confidence=0.8)


def test_one_run_bound_covers_randomised_response():
    """Answers that are right with e^ε/(1 + e^ε) are exactly ε-DP: the bound exceeds ε in about 5 % of all audits, never in more."""
    epsilon, guesses = 1.0, 400
    p = 1 / (1 + math.exp(-epsilon))

    def bound(correct):
        return one_run_epsilon(canaries=guesses, guesses=guesses, correct=correct, delta=1e-12, confidence=0.95)

    first = next(correct for correct in range(round(p * guesses), guesses) if bound(correct) > epsilon)
    assert 0.03 < binom.sf(first - 1, guesses, p) <= 0.05


@pytest.mark.parametrize(("errors", "trials"), [(0, 50), (3, 50), (49, 50), (17, 4000)])
def test_clopper_pearson_is_exact(errors, trials):
    """At the bound, so few errors have exactly the stated probability."""
    assert binom.cdf(errors, trials, upper_bound(errors, trials, 0.025)) == pytest.approx(0.025, rel=1e-6)


def test_clopper_pearson_knows_nothing_without_trials():
    assert upper_bound(0, 0, 0.025) == upper_bound(5, 5, 0.025) == 1.0


def test_both_error_bounds_hold_together_at_the_confidence():
    """The exact probability, over all pairs of counts, that at least one bound is below its rate."""
    trials, rates = 60, (0.3, 0.1)
    wrong = []
    for rate in rates:
        counts = [k for k in range(trials + 1) if ErrorRates(k, trials, k, trials, 0.95).false_positive_bound < rate]
        wrong.append(binom.cdf(max(counts), trials, rate))
    assert all(0 < probability <= 0.025 for probability in wrong)
    assert 1 - (1 - wrong[0]) * (1 - wrong[1]) <= 0.05


def test_gaussian_view_stays_below_the_true_mu_and_comes_near_it():
    mu, threshold, trials = 1.3, 0.4, 4000
    generator = np.random.default_rng(3)
    false_positives = generator.binomial(trials, norm.sf(threshold), size=400)
    false_negatives = generator.binomial(trials, norm.cdf(threshold - mu), size=400)
    found = np.array(
        [
            ErrorRates(int(k), trials, int(j), trials, 0.95).mu
            for k, j in zip(false_positives, false_negatives, strict=True)
        ]
    )
    assert (found > mu).mean() <= 0.05  # a bound at 95 %; a factor of √2 in one bound would miss it
    assert found.mean() > 0.92 * mu
    errors = ErrorRates(int(false_positives[0]), trials, int(false_negatives[0]), trials, 0.95)
    assert errors.epsilon(1e-5) == gaussian_epsilon(errors.mu, 1e-5)


def test_guessing_blindly_gives_nothing():
    errors = ErrorRates(500, 1000, 500, 1000, 0.95)
    assert errors.mu == errors.epsilon(1e-5) == 0.0
    assert ErrorRates(0, 0, 0, 0, 0.95).mu == 0.0


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_trade_off_of_a_gaussian_is_the_known_curve(mu):
    curve = trade_off(lambda epsilon: gaussian_delta(mu, epsilon), largest=12.0)
    for rate in (1e-4, 1e-2, 0.1, 0.3, 0.5, 0.9):
        exact = norm.cdf(norm.isf(rate) - mu)
        assert exact - 2e-4 <= curve(rate) <= exact + 1e-12
    assert curve(1.0) == 0.0


def test_trade_off_of_a_claim_bounds_the_best_test_with_sampling():
    """Simulated likelihood-ratio tests of a sampled run lie above the curve of its claim, and near it; below that of twice the noise."""
    rate, noise, steps, runs = 0.5, 1.5, 6, 200_000
    generator = np.random.default_rng(0)
    scores = np.zeros((2, runs))
    for member in (0, 1):
        for _ in range(steps):
            seen = member * (generator.random(runs) < rate) + noise * generator.standard_normal(runs)
            scores[member] += np.log(1 - rate + rate * np.exp((2 * seen - 1) / (2 * noise**2)))
    curve = trade_off(PrivacyLossAccountant().profile({Event(rate, noise): steps}), largest=8.0)
    weaker = trade_off(PrivacyLossAccountant().profile({Event(rate, 2 * noise): steps}), largest=8.0)
    for threshold in (-0.5, 0.0, 0.5, 1.0):
        false_positives, false_negatives = (scores[0] > threshold).mean(), (scores[1] <= threshold).mean()
        assert curve(false_positives) - 0.005 < false_negatives < curve(false_positives) + 0.03
        assert false_negatives < weaker(false_positives) - 0.1
