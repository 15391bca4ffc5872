"""What choosing the best of several runs costs."""

import math

import pytest

from apportion.accounting.renyi import RenyiAccountant
from apportion.accounting.selection import selection_epsilon
from apportion.errors import InvalidArgument
from apportion.request import Event

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
