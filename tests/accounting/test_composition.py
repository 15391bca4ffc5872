"""The accountant against dp_accounting, closed forms and itself without interpolation: always an upper bound, never a loose one."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as reference
from scipy.stats import binom, norm

from apportion.accounting import accountant
from apportion.accounting.accountant import PrivacyLossAccountant, RunningPrice, count_events
from apportion.accounting.attacker import advantage, true_positive_rate
from apportion.accounting.composition import Composition
from apportion.accounting.grid import choose_grid, make_cells
from apportion.accounting.loss import discretise
from apportion.errors import InvalidArgument
from apportion.event import Event
from suites import thinned

ACCOUNTANT = PrivacyLossAccountant()


def independent(events, delta, *, upper, interval=1e-4):
    """dp_accounting's bound from above or from below, both directions."""
    total = None
    for event, count in events.items():
        one = reference.from_gaussian_mechanism(
            event.noise_multiplier,
            sampling_prob=event.sample_rate,
            value_discretization_interval=interval,
            pessimistic_estimate=upper,
            use_connect_dots=upper,
        ).self_compose(count)
        total = one if total is None else total.compose(one)
    return total.get_epsilon_for_delta(delta)


def random_cases(number):
    generator = np.random.default_rng(7)
    for _ in range(number):
        groups = int(generator.integers(1, 4))
        rate = float(10 ** generator.uniform(-3, -0.75))
        events = {
            Event(rate, float(10 ** generator.uniform(math.log10(0.6), math.log10(4)))): int(
                10 ** generator.uniform(1, 3.3)
            )
            for _ in range(groups)
        }
        yield events, float(10 ** generator.uniform(-8, -4.3))


@pytest.mark.parametrize(
    ("events", "delta"),
    [pytest.param(*case, marks=[] if place == 4 else [pytest.mark.slow]) for place, case in enumerate(random_cases(8))],
)
def test_random_plans_lie_between_independent_bounds(events, delta):
    ours = ACCOUNTANT.epsilon(events, delta)
    assert ours >= independent(events, delta, upper=False) * (1 - 1e-9)
    assert ours <= independent(events, delta, upper=True) * 1.002


RARE = [
    (
        {Event(0.000448494929646911, 2.234711605578296): 192, Event(0.000448494929646911, 0.7775775606575914): 56},
        2.06e-08,
    ),
    (
        {Event(0.0008937341777406167, 4.651969782472722): 863, Event(0.0008937341777406167, 1.2879121651586034): 6},
        2.79e-10,
    ),
    ({Event(0.0020692185074589857, 0.73076314821473): 73}, 4.2e-09),
    ({Event(0.0006150689768327637, 1.1065870528905632): 200}, 1.9e-10),
    ({Event(0.004761612568788197, 1.1691198797622604): 2}, 2.8e-10),
]


@pytest.mark.parametrize(("events", "delta"), RARE)
def test_plans_whose_tail_is_a_single_unlucky_step(events, delta):
    """A record is hardly ever drawn, and δ is small: here Chernoff's bound is loose, and the price must not be."""
    ours = ACCOUNTANT.epsilon(events, delta)
    assert ours >= independent(events, delta, upper=False) * (1 - 1e-9)
    assert ours <= independent(events, delta, upper=True) * 1.002


@pytest.mark.slow
@pytest.mark.parametrize(("events", "delta"), list(random_cases(5)))
def test_random_plans_against_a_grid_of_1e_5(events, delta):
    assert ACCOUNTANT.epsilon(events, delta) == pytest.approx(
        independent(events, delta, upper=True, interval=1e-5), rel=2e-3
    )


# --- interpolation --------------------------------------------------------------------------------------------------------


def gaussian_delta(mu, epsilon):
    return norm.cdf(-epsilon / mu + mu / 2) - np.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)


def test_delta_is_convex_in_total_variation_and_in_the_rate():
    """The inequality behind the interpolation, at 20,000 random points for each of both directions."""
    generator = np.random.default_rng(0)
    size = 20_000
    mu0, mu1 = np.sort(10 ** generator.uniform(-1.3, 1.2, (2, size)), axis=0)
    mu = generator.uniform(mu0, mu1)
    total_variation = [2 * norm.cdf(m / 2) - 1 for m in (mu0, mu, mu1)]
    with np.errstate(invalid="ignore", divide="ignore"):
        weight = np.nan_to_num(
            (total_variation[1] - total_variation[0]) / (total_variation[2] - total_variation[0]), nan=1.0
        )
    epsilon = generator.uniform(-3, 8, size)
    mixture = (1 - weight) * gaussian_delta(mu0, epsilon) + weight * gaussian_delta(mu1, epsilon)
    assert (gaussian_delta(mu, epsilon) - mixture).max() < 1e-14

    def removed(q, m, e):
        inside = e > np.log1p(-q)
        inner = np.log(np.maximum(np.expm1(e) + q, 1e-300) / q)
        return np.where(inside, q * gaussian_delta(m, inner), -np.expm1(e))

    q0, q1 = np.sort(generator.uniform(0.001, 0.9, (2, size)), axis=0)
    share = generator.uniform(0, 1, size)
    between = (1 - share) * q0 + share * q1
    mixture = (1 - share) * removed(q0, mu, epsilon) + share * removed(q1, mu, epsilon)
    assert (removed(between, mu, epsilon) - mixture).max() < 1e-12


SCHEDULES = {
    "growing mu": lambda steps: [(256 / 60_000, 2.9 * 0.3 ** (t / steps)) for t in range(steps)],
    "steep": lambda steps: [(0.01, 6.0 * 0.12 ** (t / steps)) for t in range(steps)],
    "high noise": lambda steps: [(0.05, 9.0 - 4 * t / steps) for t in range(steps)],
    "batch ramp": lambda steps: [(128 * 8 ** (t / steps) / 60_000, 3.0 - 1.8 * t / steps) for t in range(steps)],
}


def in_core(name, delta):
    """Each schedule once, each δ twice."""
    return (delta == 1e-5) == (list(SCHEDULES).index(name) % 2 == 0)


@pytest.mark.parametrize(("name", "delta"), thinned(itertools.product(SCHEDULES, [1e-5, 1e-9]), in_core))
def test_interpolated_nodes_bound_exact_ones_closely(name, delta):
    """300 different steps, each taken ten times: one node a step against a few dozen shared ones, on the same grid."""
    events = {Event(q, z): 10 for q, z in SCHEDULES[name](300)}
    exact, shared = (make_cells(events, delta, exact=choice) for choice in (True, False))
    grid = choose_grid(exact, delta)
    prices = []
    for cells in (exact, shared):
        composition = Composition(grid)
        composition.add(cells)
        prices.append(composition.curve().epsilon(delta))
    assert prices[0] * (1 - 1e-6) <= prices[1] <= prices[0] * 1.002


def test_nodes_far_apart_bound_steps_that_hardly_matter():
    """A thousand quiet steps beside a few loud ones: fewer nodes than the lattice has, and still a bound."""
    quiet = [8.0 * 1.02**t for t in range(250)]
    events = count_events([Event(0.02, z) for z in (*quiet, *[0.8 + 0.01 * t for t in range(60)])])
    exact, shared = (make_cells(events, 1e-5, exact=choice) for choice in (True, False))
    assert len({node for cell in shared for node in cell.corners}) < 110, "at the usual distance there are 240"
    grid = choose_grid(exact, 1e-5)
    prices = []
    for cells in (exact, shared):
        composition = Composition(grid)
        composition.add(cells)
        prices.append(composition.curve().epsilon(1e-5))
    assert prices[0] * (1 - 1e-9) <= prices[1] <= prices[0] * 1.002


def test_adding_step_by_step_equals_adding_at_once():
    """Within a factor of 2 of each other: beyond it, nodes of steps that hardly matter beside the others lie further apart."""
    events = [Event(0.01, 1.98 * 0.5 ** (t / 60)) for t in range(60)]
    cells = make_cells(count_events(events), 1e-5, exact=False)
    grid = choose_grid(cells, 1e-5)
    at_once, step_by_step = Composition(grid), Composition(grid)
    at_once.add(cells)
    for event in events:
        step_by_step.add(make_cells({event: 1}, 1e-5, exact=False))
    assert step_by_step.curve().epsilon(1e-5) == pytest.approx(at_once.curve().epsilon(1e-5), rel=1e-7)


# --- closed forms and edges -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "multiplier"), [(0.01, 1.0), (0.3, 0.7), (0.9, 3.0)])
@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.0])
def test_one_step_is_the_analytic_curve(rate, multiplier, epsilon):
    inner = math.log((math.expm1(epsilon) + rate) / rate)
    analytic = rate * gaussian_delta(1 / multiplier, inner)
    found = ACCOUNTANT.curve({Event(rate, multiplier): 1}, 1e-9).removed.delta(epsilon)
    assert analytic <= found <= analytic * 1.003 + 1e-12


def test_atoms_keep_both_measures():
    loss = discretise(0.02, 0.9, (), 1e-3, 1e-12)
    assert loss.removed.sum() + loss.removed_infinite == pytest.approx(1, abs=1e-12)
    assert loss.added.sum() + loss.added_infinite == pytest.approx(1, abs=1e-12)
    assert (loss.removed >= 0).all()


@pytest.mark.parametrize(
    ("events", "delta"),
    [
        ({Event(0.01, 0.1): 5}, 1e-5),
        ({Event(0.5, 0.05): 3}, 1e-5),
        ({Event(0.1, 0.19): 100}, 1e-5),
        ({Event(0.999, 2.0): 100}, 1e-5),
        ({Event(1 - 1e-12, 2.0): 100}, 1e-5),
        ({Event(0.1, 2.0): 1}, 1e-5),
        ({Event(1e-3, 1.0): 10**6}, 1e-6),
        ({Event(0.01, 2.0): 1000}, 1e-20),
        ({Event(0.01, 2.0): 1000}, 1e-50),
        ({Event(1e-9, 1.0): 1000}, 1e-5),
        ({Event(0.1, 1000.0): 1000}, 1e-5),
        ({Event(1.0, 5.0): 2, Event(0.1, 3.0): 20}, 1e-5),
        ({Event(0.1, 1.0): 100}, 0.5),
    ],
)
def test_extreme_plans_have_a_finite_price(events, delta):
    epsilon = ACCOUNTANT.epsilon(events, delta)
    assert 0 <= epsilon < 1e4
    if epsilon:
        assert ACCOUNTANT.curve(events, delta).delta(epsilon * (1 + 1e-9)) <= delta * (1 + 1e-6)


def test_a_fine_grid_is_not_needed_for_many_small_steps():
    """dp_accounting's fixed grid says 0.692 here; a grid of 2 % of the loss's deviation says 0.658."""
    assert ACCOUNTANT.epsilon({Event(1e-4, 1.0): 10**6}, 1e-8) == pytest.approx(0.658, rel=2e-3)


@pytest.mark.parametrize("group", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_groups_of_records(group):
    sensitivities, weights = list(range(group + 1)), [binom.pmf(j, group, 0.01) for j in range(group + 1)]
    one = reference.from_mixture_gaussian_mechanism(2.0, sensitivities, weights, value_discretization_interval=4e-4)
    expected = one.self_compose(500).get_epsilon_for_delta(1e-5)
    assert ACCOUNTANT.epsilon({Event(0.01, 2.0): 500}, 1e-5, group=group) == pytest.approx(expected, rel=2e-3)


def test_a_group_without_sampling_is_a_larger_shift():
    assert ACCOUNTANT.epsilon({Event(1.0, 6.0): 4}, 1e-5, group=3) == pytest.approx(
        ACCOUNTANT.epsilon({Event(1.0, 1.0): 1}, 1e-5)
    )


@pytest.mark.parametrize(("delta", "group"), [(1e-70, 1), (1e-5, 0), (1e-5, 1.5)])
def test_what_cannot_be_resolved_is_refused(delta, group):
    with pytest.raises(InvalidArgument):
        ACCOUNTANT.epsilon({Event(0.1, 1.0): 10}, delta, group=group)


# --- the attacker's view --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [1.0, 1 - 1e-12])
def test_attacker_views_of_a_plain_gaussian(rate):
    """For N(μ, 1) against N(0, 1) the best test has TPR = Φ(μ − Φ⁻¹(1 − FPR)) and advantage 2Φ(μ/2) − 1."""
    profile = ACCOUNTANT.profile({Event(rate, 1.0): 1})
    for false_positives in (0.001, 0.01, 0.2):
        assert true_positive_rate(profile, false_positives) == pytest.approx(
            norm.cdf(1 - norm.isf(false_positives)), rel=5e-3
        )
    assert advantage(profile) == pytest.approx(2 * norm.cdf(0.5) - 1, rel=1e-3)


def test_delta_is_the_inverse_of_epsilon_everywhere():
    events = {Event(0.01, 1.5): 2000}
    for delta in (0.05, 1e-3, 1e-6, 1e-10):
        epsilon = ACCOUNTANT.epsilon(events, delta)
        assert ACCOUNTANT.delta(events, epsilon) == pytest.approx(delta, rel=0.02)
    assert ACCOUNTANT.delta({}, 0.1) == 0.0


# --- step by step ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [[Event(0.02, 1.3)] * 400, [Event(0.01, 2.5 * 0.4 ** (t / 400)) for t in range(400)]])
def test_the_running_price_follows_the_prefix(plan):
    running = RunningPrice(count_events(plan), 1e-5)
    assert running.epsilon() == 0.0
    previous = 0.0
    for number, event in enumerate(plan, start=1):
        running.add(event)
        if number in (1, 7, 100, 101, 399, 400):
            price = running.epsilon()
            alone = ACCOUNTANT.epsilon(count_events(plan[:number]), 1e-5)
            assert alone * (1 - 1e-3) <= price <= alone * 1.02
            assert price >= previous
            assert running.epsilon() == price, "reading changed it"
            previous = price
    assert previous == pytest.approx(ACCOUNTANT.epsilon(count_events(plan), 1e-5), rel=1e-3)


def test_runs_of_one_plan_share_a_grid_and_no_other_plan_or_delta_does():
    cases = [({Event(0.02, noise): 100}, delta) for noise in (1.3, 2.6) for delta in (1e-5, 1e-9)]

    def price(plan, delta):
        running = RunningPrice(plan, delta)
        for event, count in plan.items():
            for _ in range(count):
                running.add(event)
        return running.epsilon()

    alone = []
    for case in cases:
        accountant._grid_of_runs.cache_clear()
        alone.append(price(*case))
    assert [price(*case) for case in cases] == [price(*case) for case in cases] == alone
    assert accountant._grid_of_runs.cache_info().hits == len(cases) + 1
    assert len(set(alone)) == len(cases)


def test_a_running_price_without_sampling():
    running = RunningPrice({Event(1.0, 3.0): 5}, 1e-5)
    for _ in range(5):
        running.add(Event(1.0, 3.0))
    assert running.epsilon() == pytest.approx(ACCOUNTANT.epsilon({Event(1.0, 3.0): 5}, 1e-5), rel=2e-3)


def test_groups_and_many_different_steps_are_priced_from_above():
    events = {Event(0.01, 3.0 - t / 300): 1 for t in range(300)}
    single, pair = (ACCOUNTANT.epsilon(events, 1e-5, group=group) for group in (1, 2))
    assert single < pair < 4 * single
