"""What choosing the best of several runs costs."""

import math
from itertools import islice

import numpy as np
import pytest
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta

from apportion.accounting import selection
from apportion.accounting.renyi import ORDERS, RenyiAccountant, renyi_sum
from apportion.accounting.selection import NumberOfTrials, Selection, TrialOfSearch
from apportion.errors import InvalidArgument
from apportion.event import Choice, Event


def selection_epsilon(events, delta, *, score="public", **settings):
    return selection.selection_epsilon(events, delta, score=score, **settings)


RUN, DELTA = {Event(256 / 60_000, 1.24): 5_000}, 1 / 600_000


@pytest.mark.parametrize(
    ("runs", "prices"),
    [
        ("logarithmic", {3: 1.97, 10: 2.27, 30: 2.50, 100: 2.71}),
        ("geometric", {3: 2.22, 10: 2.70, 30: 3.05, 100: 3.39}),
        ("poisson", {3: 1.86, 10: 2.93, 30: 5.64, 100: 10.9}),
    ],
)
def test_known_prices(runs, prices):
    for expected_runs, epsilon in prices.items():
        assert selection_epsilon(RUN, DELTA, expected_runs=expected_runs, runs=runs) == pytest.approx(epsilon, rel=4e-3)


def test_a_single_run_is_where_it_starts():
    assert RenyiAccountant().epsilon(RUN, DELTA) == pytest.approx(1.361, rel=1e-3)


def test_shapes_lie_between_their_names():
    named = [selection_epsilon(RUN, DELTA, expected_runs=10, runs=runs) for runs in ("logarithmic", "geometric")]
    between = selection_epsilon(RUN, DELTA, expected_runs=10, runs=0.5)
    assert named[0] < between < named[1]
    assert selection_epsilon(RUN, DELTA, expected_runs=10, runs=1.0) == named[1]
    assert selection_epsilon(RUN, DELTA, expected_runs=10, runs=math.inf) == pytest.approx(2.93, rel=4e-3)


def test_many_multipliers_cost_a_little_more_than_exactly_and_no_less():
    many = {Event(0.01, 2.0 + 0.001 * t): 10 for t in range(50)}
    found = selection_epsilon(many, 1e-5, expected_runs=5)
    low, high = (selection_epsilon({Event(0.01, z): 500}, 1e-5, expected_runs=5) for z in (2.049, 2.0))
    assert low < found <= high


@pytest.mark.parametrize("multiplier", [math.inf, 5.0])
def test_events_with_selections_are_not_priced_by_their_gaussian_alone(multiplier):
    with pytest.raises(InvalidArgument, match="selection"):
        selection_epsilon({Event(0.01, multiplier, (Choice(2.0),)): 1000}, 1e-5, expected_runs=10)


def test_nothing_costs_nothing():
    assert selection_epsilon({}, 1e-5, expected_runs=10) == 0.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"expected_runs": 0.5}, "expected_runs=0.5"),
        ({"expected_runs": math.inf}, "expected_runs=inf"),
        ({"expected_runs": 3, "runs": "poison"}, "Did you mean 'poisson'"),
        ({"expected_runs": 3, "runs": -1.0}, "runs=-1.0"),
        ({"expected_runs": 3, "runs": math.nan}, "runs=nan"),
    ],
)
def test_bad_input(arguments, words):
    with pytest.raises(InvalidArgument, match=words):
        selection_epsilon(RUN, DELTA, **arguments)


@pytest.mark.parametrize("score", ["private", "accuracy on the private data", "held-out", "", None, 0.9, ["public"]])
def test_an_exact_score_on_private_records_has_no_price(score):
    """One record could decide which model is published, whatever the noise in each of them."""
    with pytest.raises(InvalidArgument, match=r"score=.*private records has no price.*among the events"):
        selection_epsilon(RUN, DELTA, expected_runs=3, score=score)


def test_where_the_score_comes_from_must_be_said():
    with pytest.raises(TypeError, match="score"):
        selection.selection_epsilon(RUN, DELTA, expected_runs=3)


def test_a_released_score_costs_what_its_draws_cost():
    without = selection_epsilon(RUN, DELTA, expected_runs=3, score="public")
    assert selection_epsilon(RUN, DELTA, expected_runs=3, score="released") == without
    judged = {**RUN, Event(1.0, 20.0): 1}
    assert selection_epsilon(judged, DELTA, expected_runs=3, score="released") > without


SHAPES = ["logarithmic", "geometric", 0.5]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", [1.5, 3, 10, 100])
def test_a_search_with_one_kind_of_candidate_costs_what_dp_accounting_says(mean, shape):
    theirs = selection_epsilon(RUN, DELTA, expected_runs=mean, runs=shape)
    assert Selection([RUN], NumberOfTrials(mean, shape)).epsilon(DELTA) == pytest.approx(theirs, rel=1e-8)
    assert Selection([RUN, RUN], NumberOfTrials(mean, shape)).epsilon(DELTA) == pytest.approx(theirs, rel=1e-8)


@pytest.mark.parametrize("shape", SHAPES)
def test_five_percent_less_noise_costs_more_than_was_claimed(shape):
    claimed = Selection([RUN], NumberOfTrials(10, shape)).epsilon(DELTA)
    louder = {Event(event.sample_rate, 0.95 * event.noise_multiplier): n for event, n in RUN.items()}
    assert selection_epsilon(louder, DELTA, expected_runs=10, runs=shape) > 1.03 * claimed
    assert Selection([RUN, louder], NumberOfTrials(10, shape)).epsilon(DELTA) > 1.03 * claimed


def test_candidates_are_priced_by_the_pointwise_maximum_of_their_curves():
    """Two curves that cross: each candidate alone is cheaper than what covers both."""
    few, many = {Event(1.0, 4.0): 1}, {Event(0.002, 0.7): 300}
    curves = [renyi_sum(events) for events in (few, many)]
    assert (curves[0] < curves[1]).any()
    assert (curves[0] > curves[1]).any()
    both = Selection([few, many], NumberOfTrials(10))
    assert np.array_equal(both.single, np.maximum(*curves))
    assert both.epsilon(1e-5) >= max(Selection([one], NumberOfTrials(10)).epsilon(1e-5) for one in (few, many))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_number_of_trials_has_the_distribution_that_is_priced(shape):
    trials = NumberOfTrials(7, shape)
    probabilities = list(islice(trials.probabilities(), 4000))
    numbers = range(1, 4001)
    assert sum(probabilities) == pytest.approx(1, abs=1e-9)
    assert sum(k * p for k, p in zip(numbers, probabilities, strict=True)) == pytest.approx(7, rel=1e-6)
    assert trials.expected == pytest.approx(7, rel=1e-9)
    # the generating function, from which the theorem follows: E[K·x^(K−1)] ∝ (1 − (1−γ)x)^(−η−1)
    x, eta = 0.6, float(trials.shape)
    derivative = sum(k * p * x ** (k - 1) for k, p in zip(numbers, probabilities, strict=True))
    assert derivative / trials.expected == pytest.approx(
        (trials.gamma / (1 - (1 - trials.gamma) * x)) ** (eta + 1), rel=1e-6
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_a_word_becomes_the_number_whose_share_it_lies_in(shape):
    trials = NumberOfTrials(5, shape)
    total = 0.0
    for number, probability in enumerate(islice(trials.probabilities(), 12), start=1):
        assert trials.quantile(int((total + 1e-9) * 2**128)) == number
        total += probability
        assert trials.quantile(int((total - 1e-9) * 2**128)) == number
    assert trials.quantile(0) == 1
    assert trials.quantile(2**128 - 1) > 100


def test_the_curve_of_a_search_is_that_of_dp_accounting():
    search = Selection([RUN], NumberOfTrials(10))
    points = np.array([0.0, 0.5, 1.0, 2.0, 4.0])
    theirs = [compute_delta(ORDERS, search.curve, point)[0] for point in points]
    assert (search.deltas(points) >= np.array(theirs) * (1 - 1e-9)).all()
    assert search.deltas(np.array([search.epsilon(DELTA)]))[0] == pytest.approx(DELTA, rel=1e-6)


@pytest.mark.parametrize(
    ("mean", "shape", "words"),
    [
        (1, "logarithmic", "expected_trials=1"),
        (0, "logarithmic", "expected_trials=0"),
        (math.nan, "logarithmic", "expected_trials"),
        (20_000, "logarithmic", "at most 10,000"),
        (10, "poisson", "distribution='poisson'"),
        (10, "logaritmic", "Did you mean 'logarithmic'"),
        (10, -0.5, "distribution=-0.5"),
        (10, 1e9, "at most 100"),
    ],
)
def test_numbers_of_trials_that_cannot_be_priced(mean, shape, words):
    with pytest.raises(InvalidArgument, match=words):
        NumberOfTrials(mean, shape)


def test_a_trial_of_a_search_quotes_the_price_of_the_search():
    search = Selection([RUN], NumberOfTrials(10))
    (event,) = RUN
    rule = TrialOfSearch([event] * 5_000, 0, search)
    assert rule.epsilon(DELTA) == search.epsilon(DELTA) > 2
    assert rule.adaptive  # so that no account quotes the trial alone
    assert "logarithmic with mean 10" in rule.validity
