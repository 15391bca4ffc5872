"""What choosing the best of several runs costs."""

import math

import pytest

from apportion.accounting import selection
from apportion.accounting.renyi import RenyiAccountant
from apportion.errors import InvalidArgument
from apportion.request import Event


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
