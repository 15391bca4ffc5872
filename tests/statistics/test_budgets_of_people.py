"""Public budgets become rates, bins and rounds."""

import itertools
import math

import numpy as np
import pytest

import apportion as ap
from apportion.statistics import Adaptive, Partition, Sample
from apportion.statistics.discrete_noise import discrete_laplace_variance
from apportion.statistics.personal import best_edges, pay, sampling_rates
from apportion.statistics.roster import MOST_LEVELS, NOBODY, Roster, read_roster

EPSILONS, SHARES = (0.5, 1.0, 1.1, 2.0, 2.2), (0.1, 0.3, 0.2, 0.3, 0.1)
ROSTER = Roster(tuple("abcde"), EPSILONS, SHARES, np.arange(5))
GROUPS = {"loose": (3.0, 0.23), "strict": (1.0, 0.34), "medium": (2.0, 0.43)}


def budget_of(epsilon=2.0):
    return ap.Budget(epsilon=epsilon, delta=1e-6, unit=ap.Record())


def of_groups():
    return ap.Budget.of_groups(GROUPS, delta=1e-6, unit=ap.Record())


def test_rates_are_those_of_the_paper():
    rates = sampling_rates((0.5, 1.0, 3.0), 1.0)
    assert rates == pytest.approx((math.expm1(0.5) / math.expm1(1.0), 1.0, 1.0), rel=1e-11)
    assert rates[0] < math.expm1(0.5) / math.expm1(1.0)
    assert sampling_rates((1.0, 900.0, 1000.0), 1000.0) == pytest.approx((0.0, math.exp(-100), 1.0))
    (part,) = Sample(threshold=1.0).parts(ROSTER)
    assert list(pay([part], ROSTER).values()) == pytest.approx([min(one, 1.0) for one in EPSILONS], rel=1e-10)
    (mean,) = Sample(threshold="mean").parts(ROSTER)
    assert mean.epsilon == pytest.approx(np.dot(SHARES, EPSILONS))
    assert Sample().parts(ROSTER)[0].epsilon == 2.2


def all_cuts(levels, most):
    for size in range(min(most, levels)):
        for inner in itertools.combinations(range(1, levels), size):
            yield [0, *inner, levels]


def waste(edges):
    return sum(
        SHARES[p] * (EPSILONS[p] - EPSILONS[start])
        for start, stop in itertools.pairwise(edges)
        for p in range(start, stop)
    )


def minus_precision(edges):
    return -sum(
        sum(SHARES[start:stop]) ** 2 / discrete_laplace_variance(1 / EPSILONS[start])
        for start, stop in itertools.pairwise(edges)
    )


@pytest.mark.parametrize("bins", [1, 2, 3, 4, None])
@pytest.mark.parametrize(("by", "cost"), [("privacy", waste), ("utility", minus_precision)])
def test_bins_are_the_best_of_all(by, cost, bins):
    parts = Partition(by=by, bins=bins).parts(ROSTER)
    edges = [0, *np.cumsum([sum(part.rates) for part in parts]).astype(int)]
    assert cost(edges) == pytest.approx(min(map(cost, all_cuts(5, bins or 5))), abs=1e-12)
    assert [part.epsilon for part in parts] == [EPSILONS[start] for start in edges[:-1]]
    assert np.sum([part.rates for part in parts], axis=0).tolist() == [1.0] * 5
    if by == "privacy" and bins == 2:
        assert edges == [0, 3, 5] or cost(edges) < cost([0, 3, 5])
    if by == "utility" and bins is None:
        assert len(parts) < 5, "similar budgets share a bin"


def test_a_cut_of_any_costs_is_the_cheapest():
    generator = np.random.default_rng(0)
    for _ in range(20):
        table = generator.normal(size=(7, 8))
        edges = best_edges(7, 4, lambda start, stop: float(table[start, stop]))  # noqa: B023
        best = min(sum(table[a, b] for a, b in itertools.pairwise(cut)) for cut in all_cuts(7, 4))
        assert sum(table[a, b] for a, b in itertools.pairwise(edges)) == pytest.approx(best)


@pytest.mark.parametrize("population", [1, 50, 1e6])
def test_rounds_spend_what_is_left_and_no_more(population):
    method = Adaptive(population=population)
    parts = method.parts(ROSTER)
    assert list(pay(parts, ROSTER).values()) == pytest.approx(EPSILONS, rel=1e-9)
    residual = np.array(EPSILONS)
    for part in parts:
        assert part.rates == pytest.approx(sampling_rates(residual.tolist(), part.epsilon), rel=1e-6, abs=1e-9)
        residual = np.maximum(residual - part.epsilon, 0.0)
        residual[residual < 1e-9] = 0.0
    assert not residual.any()
    assert len(method.parts(ROSTER)) <= 5
    assert len(Adaptive(population=population, rounds=1).parts(ROSTER)) == 1


def test_a_large_population_is_not_sampled_and_a_small_one_is():
    """Noise does not grow with the population; the error of sampling does."""
    first = {n: Adaptive(population=n).parts(ROSTER)[0] for n in (1, 1e6)}
    assert first[1e6].epsilon == 0.5
    assert set(first[1e6].rates) == {1.0}
    assert first[1].epsilon > 0.5


def test_a_roster_of_groups_has_declared_shares():
    roster = read_roster(of_groups(), 4, ["medium", "loose", "strict", "medium"], None)
    assert roster.names == ("strict", "medium", "loose")
    assert roster.epsilons == (1.0, 2.0, 3.0)
    assert roster.shares == (0.34, 0.43, 0.23)
    assert roster.level.tolist() == [1, 2, 0, 1]
    assert roster.sizes.tolist() == [1, 2, 1]
    assert read_roster(of_groups(), 4, np.array([2, 0, 1, 2]), None).level.tolist() == [1, 2, 0, 1]
    known = ap.Budget.of_groups(GROUPS, delta=1e-6, unit=ap.Record(), labels=["strict", "loose"])
    found = ap.statistics.count([1.0, 2.0], budget=known, method=Partition(by="privacy"), seed=0)
    assert dict(found.paid) == {"strict": 1.0, "medium": 2.0, "loose": 3.0}


def test_budgets_of_records_are_rounded_down_to_those_of_groups():
    roster = read_roster(of_groups(), 5, None, [0.9, 1.0, 2.5, 3.0, 70.0])
    assert roster.level.tolist() == [NOBODY, 0, 1, 2, 2]
    terms = {"budget": of_groups(), "epsilons": [0.9] * 500, "seed": 0}
    found = ap.statistics.count([1.0] * 500, method=Partition(bins=1), **terms)
    assert abs(found.value) < 30, "they take no part, and nothing says so"


def test_many_different_budgets_become_a_grid():
    epsilons = np.linspace(0.5, 2.0, 1000)
    roster = read_roster(budget_of(), 1000, None, epsilons)
    assert len(roster.epsilons) <= MOST_LEVELS
    rounded = np.array(roster.epsilons)[roster.level]
    assert (rounded <= epsilons).all()
    assert (epsilons - rounded).max() < 0.03
    few = read_roster(budget_of(), 3, None, [1.0, 2.0, 1.0])
    assert (few.epsilons, few.shares) == ((1.0, 2.0), (2 / 3, 1 / 3))


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"epsilons": [1.0, 0.0]}, "each must be positive"),
        ({"epsilons": [1.0, -1.0]}, "each must be positive"),
        ({"epsilons": [1.0, math.nan]}, "each must be positive"),
        ({"epsilons": [1.0, math.inf]}, "each must be positive"),
        ({"epsilons": [1.0, 2.5]}, "at most epsilon=2"),
        ({"epsilons": [1.0]}, "another length"),
        ({"epsilons": ["a", "b"]}, "not a column of numbers"),
        ({"epsilons": [[1.0], [1.0]]}, "not a column of numbers"),
        ({"labels": ["a", "b"]}, "it has no groups"),
        ({"labels": ["a", "b"], "epsilons": [1.0, 1.0]}, "epsilons were given too"),
        ({"budget": of_groups()}, "the budget has the groups"),
        ({"budget": of_groups(), "labels": ["strict"]}, "another length"),
        ({"budget": of_groups(), "labels": ["strict", "nobody"]}, "names no group"),
        ({"budget": of_groups(), "labels": [0, 3]}, "names no group"),
        ({"budget": of_groups(), "labels": "group"}, "no inputs"),
        ({"budget": of_groups(), "labels": lambda inputs, target: target}, "no inputs"),
        ({"epsilons": [1.0, 1.0], "method": None}, "needs a method: Sample, Partition, Adaptive, Exponential"),
        ({"epsilons": [1.0, 1.0], "method": "sample"}, "needs a method"),
        ({"epsilons": None}, "there is one ε for all"),
        ({"epsilon": 1.0}, "there is no such argument"),
        ({"budget": 1.0}, "not a Budget"),
        ({"budget": ap.Budget(epsilon=2.0, delta=1e-6, unit=ap.User())}, "protects single values"),
    ],
)
def test_what_makes_no_sense_is_refused(terms, words):
    with pytest.raises(ap.InvalidArgument, match=words):
        ap.statistics.count([1.0, 2.0], **({"budget": budget_of(), "method": Sample(), "seed": 0} | terms))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Sample(threshold=0.0), "threshold"),
        (lambda: Sample(threshold=-1.0), "threshold"),
        (lambda: Sample(threshold="median"), "threshold"),
        (lambda: Partition(by="size"), "by"),
        (lambda: Partition(bins=0), "bins"),
        (lambda: Adaptive(population=0), "population"),
        (lambda: Adaptive(population=10, rounds=0), "rounds"),
    ],
)
def test_a_method_that_makes_no_sense_is_refused(make, words):
    with pytest.raises(ap.InvalidArgument, match=f"method.{words}"):
        make()
