import math

import numpy as np
import pytest

from apportion import Budget, Record
from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.accounting.gaussian import gaussian_delta
from apportion.accounting.run_filter import Cost, GaussianRuns, SumOfRuns, gaussian_cost, search_cost
from apportion.accounting.selection import NumberOfTrials, Selection
from apportion.event import Event

RATE, DELTA = 256 / 60000, 1e-5
FAILURE = 0.03 * DELTA
THREE_RUNS = [{Event(RATE, multiplier): 5000} for multiplier in (2.0, 1.5, 1.2)]
ACCOUNTANT = PrivacyLossAccountant()


def limit(epsilon, delta=DELTA):
    return Budget(epsilon=epsilon, delta=delta, unit=Record())


def total(costs):
    return sum(costs, Cost())


def bound(cost, epsilon):
    """(1−d)·δ_μ(ε) + d."""
    failure = -math.expm1(-cost.failure)
    return (1 - failure) * gaussian_delta(math.sqrt(cost.main), epsilon) + failure


@pytest.fixture(scope="module")
def three_costs():
    return [gaussian_cost(plan, FAILURE / 3) for plan in THREE_RUNS]


def test_three_runs_fit_into_a_limit_a_little_above_their_joint_price(three_costs):
    together = ACCOUNTANT.epsilon({event: n for plan in THREE_RUNS for event, n in plan.items()}, DELTA)
    assert together == pytest.approx(1.628, abs=2e-3)
    assert total(three_costs).fits(GaussianRuns(limit(1.650)).capacity())
    assert not total(three_costs).fits(GaussianRuns(limit(1.628)).capacity())
    # A μ that is 5 % too small would fit into 1.57, below the joint price.
    assert 1.628 < GaussianRuns(limit(1.65)).epsilon(total(three_costs)) <= 1.650


def test_sums_pay_far_more():
    rule = SumOfRuns(limit(3.0))
    costs = [rule.cost(plan, DELTA / 3, rule.capacity()) for plan in THREE_RUNS]
    assert rule.epsilon(total(costs)) == pytest.approx(2.80, abs=0.01)
    assert total(costs).fits(rule.capacity())
    assert not total(costs).fits(SumOfRuns(limit(2.79)).capacity())
    assert not total([*costs, Cost(0.0, 1e-9)]).fits(rule.capacity())


def test_small_binary_errors_do_not_refuse_what_people_would_add_up():
    assert total([Cost(0.1, 1e-6)] * 10).fits(SumOfRuns(limit(1.0)).capacity())


def test_a_run_chosen_after_a_lucky_result_is_refused():
    """Pathwise PLD says 1.18 and would admit it, but the worst case of such a choice is 1.2525."""
    rule = GaussianRuns(limit(1.19))
    first = rule.cost({Event(RATE, 1.2): 2500}, DELTA, rule.capacity())
    assert first.fits(rule.capacity())
    second = rule.cost({Event(RATE, 0.682): 25}, DELTA, rule.capacity().minus(first))
    assert ACCOUNTANT.epsilon({Event(RATE, 1.2): 2500, Event(RATE, 0.682): 25}, DELTA) < 1.19
    assert not (first + second).fits(rule.capacity())


@pytest.mark.parametrize(
    "plan",
    [
        {Event(RATE, 1.2): 5000},
        {Event(0.2, 2.1): 200},
        {Event(0.01, 0.4): 1},
        {Event(0.001, 5.0): 3},
        {Event(0.5, 1.0): 3, Event(1.0, 20.0): 2},
    ],
    ids=str,
)
def test_the_summary_bounds_the_whole_curve(plan):
    cost = gaussian_cost(plan, FAILURE / 20)
    for delta in np.geomspace(1e-9, 0.3, 12):
        epsilon = ACCOUNTANT.epsilon(plan, float(delta))
        assert bound(cost, epsilon) >= delta * (1 - 1e-6) or epsilon == 0
    smaller = Cost(cost.main * 0.95**2, cost.failure)
    assert any(
        bound(smaller, ACCOUNTANT.epsilon(plan, float(delta))) < delta for delta in np.geomspace(1e-8, 0.3, 60)
    ), "μ is not the smallest"


def test_a_run_on_all_records_is_exactly_gaussian():
    assert gaussian_cost({Event(1.0, 4.0): 4}, 1e-9).main == pytest.approx(0.25)
    assert gaussian_cost({Event(1.0, 4.0): 4}, 1e-9).failure == 0


def test_a_run_that_sees_nobody_costs_no_more_than_its_failure():
    cost = gaussian_cost({Event(1e-9, 1.0): 1}, 1e-8)
    assert cost == Cost(0.0, -math.log1p(-1e-8))
    assert gaussian_cost({}, 1e-8) == Cost()


def test_the_capacity_is_the_limit():
    for epsilon, delta in ((0.1, 1e-8), (1.65, 1e-5), (30.0, 1e-3)):
        rule = GaussianRuns(limit(epsilon, delta))
        assert bound(rule.capacity(), epsilon) == pytest.approx(delta, rel=1e-6)
        assert bound(rule.capacity(), epsilon) <= delta
        assert rule.epsilon(rule.capacity()) == pytest.approx(epsilon, rel=1e-6)


def test_the_failure_probability_is_never_used_up():
    rule = GaussianRuns(limit(1.0))
    spent = Cost()
    for _ in range(60):
        spent += rule.cost({Event(1e-9, 1.0): 1}, DELTA, rule.capacity().minus(spent))
    assert spent.fits(rule.capacity())
    assert rule.capacity().minus(spent).failure > 0


def test_what_is_left_is_said_in_words():
    """All that a rule has is a run at the limit; what a run took of it is missing."""
    gaussian, plain = GaussianRuns(limit(3.0)), SumOfRuns(limit(3.0))
    assert gaussian.room(gaussian.capacity()).startswith("about one more run of ε = 3 at δ = 1e-05")
    assert plain.room(plain.capacity().minus(Cost(1.0, 4e-6))) == "runs whose ε add up to 2 and whose δ add up to 6e-06"


SEARCH = Selection([{Event(RATE, 2.0): 5000}], NumberOfTrials(10))


def published(search, failure, points):
    """δ(e) if all K trials were published, K summed out one by one."""
    mu = math.sqrt(gaussian_cost(search.candidates[0], failure).main)
    numbers = range(1, 2000)
    total = np.zeros(len(points))
    for number, probability in zip(numbers, search.trials.probabilities(), strict=False):
        clear = 1 - (1 - failure) ** number
        deltas = np.array([gaussian_delta(math.sqrt(number) * mu, float(point)) for point in points])
        total += probability * ((1 - clear) * deltas + clear)
    return total


def test_the_summary_of_a_search_bounds_the_smaller_of_its_two_curves():
    failure = FAILURE / 20
    cost = search_cost(SEARCH, failure)
    points = np.linspace(0.0, 3.0, 40)
    curve = np.minimum(SEARCH.deltas(points), published(SEARCH, failure, points))
    assert all(bound(cost, point) >= delta for point, delta in zip(points, curve, strict=True))
    smaller = Cost((0.97**2) * cost.main, cost.failure)
    fine = np.linspace(0.0, 3.0, 400)
    curve = np.minimum(SEARCH.deltas(fine), published(SEARCH, failure, fine))
    assert any(bound(smaller, point) < delta for point, delta in zip(fine, curve, strict=True))


def test_a_search_costs_more_than_one_trial_and_less_than_its_largest_number_of_them():
    failure = FAILURE / 20
    one = gaussian_cost(SEARCH.candidates[0], failure).main
    assert 2 * one < search_cost(SEARCH, failure).main < 100 * one


def test_a_search_with_less_noise_does_not_fit_into_what_a_search_costs():
    louder = Selection([{Event(RATE, 0.95 * 2.0): 5000}], NumberOfTrials(10))
    for rule in (GaussianRuns(limit(5.0)), SumOfRuns(limit(5.0))):
        assert not rule.cost(louder, DELTA / 2, rule.capacity()).fits(rule.cost(SEARCH, DELTA / 2, rule.capacity()))


def test_under_the_sum_rule_a_search_costs_its_own_price():
    rule = SumOfRuns(limit(5.0))
    assert rule.cost(SEARCH, 1e-6, rule.capacity()) == Cost(SEARCH.epsilon(1e-6), 1e-6)
