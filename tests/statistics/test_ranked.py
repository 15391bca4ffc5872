"""Quantiles and the personalised exponential mechanism: laws against their definitions, by brute force on small data."""

import heapq
import itertools
import math

import numpy as np
import pytest
from scipy.stats import chisquare

import apportion as ap
from apportion.curator.randomness import Randomness
from apportion.statistics import ranked
from apportion.statistics.personal import Exponential, Sample
from apportion.statistics.ranked import personal_count_law, personal_median_law, quantile_law
from apportion.statistics.roster import NOBODY, Roster

CELLS = 6


@pytest.fixture(autouse=True)
def small_grid(monkeypatch):
    monkeypatch.setattr(ranked, "GRID", CELLS)


def spread(law, outcomes):
    """P[r] for every r."""
    result = np.zeros(outcomes)
    for start, width, mass in zip(law.starts, law.widths, law.masses(), strict=True):
        result[start : start + width] += mass / width
    assert law.widths.sum() == outcomes
    return result


def law_of(positions, level, epsilon):
    return spread(quantile_law(np.array(positions, dtype=np.int64), level, epsilon), CELLS + 1)


def defined_law(positions, level, epsilon):
    scores = []
    for r in range(CELLS + 1):
        below, above, m = sum(x < r for x in positions), sum(x > r for x in positions), len(positions)
        distance = max(below - level * m, above - (1 - level) * m, 0.0)
        scores.append(-epsilon * distance / (2 * max(level, 1 - level)))
    return np.exp(scores) / np.exp(scores).sum()


DATA = [positions for size in range(5) for positions in itertools.combinations_with_replacement((0, 1, 3, 6), size)]


@pytest.mark.parametrize("level", [0.5, 0.25, 0.9])
def test_a_quantile_has_the_law_of_its_definition_and_one_record_changes_it_by_epsilon(level):
    largest = 0.0
    for positions in DATA:
        law = law_of(positions, level, 0.7)
        np.testing.assert_allclose(law, defined_law(positions, level, 0.7), rtol=1e-12)
        for i in range(len(positions)):
            rest = law_of(positions[:i] + positions[i + 1 :], level, 0.7)
            largest = max(largest, np.abs(np.log(law / rest)).max())
    assert 0.4 * 0.7 < largest <= 0.7


def test_the_loss_of_a_quantile_comes_close_to_epsilon(monkeypatch):
    """So noise that is 5 % too small would exceed it."""
    monkeypatch.setattr(ranked, "GRID", 1_000_000)
    laws = [quantile_law(np.array(positions), 0.5, 1.0) for positions in ([0, 0], [0, 0, 999_990])]
    last = [law.masses()[-1] / law.widths[-1] for law in laws]
    assert 0.98 < math.log(last[0] / last[1]) <= 1.0


def test_draws_follow_the_law():
    positions, stream = [0, 1, 1, 3], Randomness.seeded(0).next_draw().noise
    law = quantile_law(np.array(positions), 0.5, 1.0)
    draws = np.bincount([law.draw(stream) for _ in range(5000)], minlength=CELLS + 1)
    assert chisquare(draws, 5000 * law_of(positions, 0.5, 1.0)).pvalue > 0.01
    assert chisquare(draws, 5000 * law_of(positions, 0.5, 1.3)).pvalue < 1e-3


BUDGETS = (0.3, 0.8, 0.8, 1.5)
PLACES = (None, 0, 2, 5)
"""Where a person's value may be; `None` is nowhere."""


def roster_of(budgets):
    levels = sorted(set(budgets))
    level = np.array([levels.index(one) for one in budgets], dtype=np.int64)
    return Roster(tuple(map(str, levels)), tuple(levels), (1 / len(levels),) * len(levels), level)


def distances(budgets, places, is_answer):
    """Of every data set from the nearest one with the answer, where adding or taking away person i costs ε_i: Dijkstra over all of them."""
    sets = list(itertools.product(places, repeat=len(budgets)))
    found = {data: 0.0 for data in sets if is_answer(data)}
    heap = [(0.0, index, data) for index, data in enumerate(found)]
    ties = itertools.count(len(heap))
    while heap:
        far, _, data = heapq.heappop(heap)
        if far > found[data]:
            continue
        for i, epsilon in enumerate(budgets):
            for place in places if data[i] is None else (None,):
                other = (*data[:i], place, *data[i + 1 :])
                if place != data[i] and far + epsilon < found.get(other, math.inf) - 1e-12:
                    found[other] = far + epsilon
                    heapq.heappush(heap, (far + epsilon, next(ties), other))
    return found


def is_median(data, r):
    there = [x for x in data if x is not None]
    return 2 * sum(x < r for x in there) <= len(there) and 2 * sum(x > r for x in there) <= len(there)


def median_law(data, roster):
    there = np.array([x is not None for x in data])
    positions = np.array([x for x in data if x is not None], dtype=np.int64)
    return spread(personal_median_law(positions, roster.level[there], roster), CELLS + 1)


def count_law(data, roster):
    counted = np.array([x is not None for x in data])
    return spread(personal_count_law(counted, roster), len(data) + 1)


LAWS = {
    "median": (median_law, is_median, CELLS + 1),
    "count": (count_law, lambda data, r: sum(x is not None for x in data) == r, len(BUDGETS) + 1),
}


@pytest.mark.parametrize("question", LAWS)
def test_the_personalised_exponential_mechanism_is_that_of_its_definition(question):
    """For every data set that four people can make, and every person in it."""
    law_of_data, is_answer, outcomes = LAWS[question]
    roster = roster_of(BUDGETS)
    places = (*PLACES, 1, 3, 4, 6) if question == "median" else (None, 0)
    far = [distances(BUDGETS, places, lambda data, r=r: is_answer(data, r)) for r in range(outcomes)]
    largest = dict.fromkeys(BUDGETS, 0.0)
    for data in itertools.product(PLACES if question == "median" else places, repeat=len(BUDGETS)):
        law = law_of_data(data, roster)
        defined = np.exp([-far[r][data] / 2 for r in range(outcomes)])
        np.testing.assert_allclose(law, defined / defined.sum(), rtol=1e-9)
        for i, epsilon in enumerate(BUDGETS):
            if data[i] is not None:
                rest = law_of_data((*data[:i], None, *data[i + 1 :]), roster)
                largest[epsilon] = max(largest[epsilon], np.abs(np.log(law / rest)).max())
    for epsilon, loss in largest.items():
        assert 0.4 * epsilon < loss <= epsilon * (1 + 1e-12)


def test_equal_budgets_are_the_ordinary_exponential_mechanism():
    roster = roster_of([0.7] * 4)
    for data in itertools.product(PLACES, repeat=4):
        there = [x for x in data if x is not None]
        np.testing.assert_allclose(median_law(data, roster), law_of(there, 0.5, 0.7), rtol=1e-12)
        ordinary = np.exp(-0.35 * np.abs(np.arange(5) - len(there)))
        np.testing.assert_allclose(count_law(data, roster), ordinary / ordinary.sum(), rtol=1e-12)


def test_whoever_is_below_the_smallest_budget_takes_no_part():
    roster = Roster(("a",), (0.7,), (1.0,), np.array([NOBODY, 0, 0]))
    law = personal_count_law(np.array([True, True, False]), roster)
    np.testing.assert_allclose(spread(law, 3), np.exp([-0.35, 0, -0.35]) / np.exp([-0.35, 0, -0.35]).sum())


@pytest.mark.usual_pieces
def test_questions_answer_with_values_between_the_bounds(monkeypatch):
    monkeypatch.setattr(ranked, "GRID", 1 << 20)
    budget = ap.Budget(epsilon=2.0, delta=1e-6, unit=ap.Record())
    values = np.arange(1000) / 10
    assert ap.statistics.quantile(values, bounds=(0, 100), budget=budget, seed=1).value == pytest.approx(50, abs=2)
    found = ap.statistics.quantile(values, 0.9, bounds=(-1e6, 1e6), budget=budget, seed=1)
    assert found.value == pytest.approx(90, abs=3)
    assert found.scale == pytest.approx(0.9)
    assert found.standard_error is None
    personal = {"budget": budget, "epsilons": np.repeat([0.5, 2.0], 500)}
    for method in (Sample(), Exponential()):
        found = ap.statistics.quantile(values, bounds=(0, 100), method=method, seed=1, **personal)
        assert 0 <= found.value <= 100
        assert list(found.paid.values()) == pytest.approx([0.5, 2.0])
    median = ap.statistics.quantile(values, bounds=(0, 100), method=Exponential(), seed=1, **personal)
    assert median.value == pytest.approx(50, abs=3)
    count = ap.statistics.count(values, bounds=(0, 49.95), method=Exponential(), seed=1, **personal)
    assert count.value == pytest.approx(500, abs=20)
    with pytest.raises(ap.InvalidArgument, match="exact for the median only"):
        ap.statistics.quantile(values, 0.9, bounds=(0, 1), method=Exponential(), seed=1, **personal)
    empty = ap.statistics.quantile([], bounds=(3, 4), budget=budget, seed=1).value
    assert 3 <= empty <= 4


def test_a_sampled_quantile_is_asked_of_the_sample(monkeypatch):
    """With the threshold as its ε."""
    from apportion.statistics import questions

    asked = []

    def remember(positions, level, epsilon):
        asked.append((len(positions), epsilon))
        return quantile_law(positions, level, epsilon)

    monkeypatch.setattr(questions, "quantile_law", remember)
    budget = ap.Budget(epsilon=2.0, delta=1e-6, unit=ap.Record())
    epsilons = np.repeat([0.1, 2.0], 2000)
    ap.statistics.quantile(np.zeros(4000), bounds=(0, 1), budget=budget, epsilons=epsilons, method=Sample(), seed=0)
    ((chosen, epsilon),) = asked
    expected = 2000 + 2000 * math.expm1(0.1) / math.expm1(2.0)
    assert chosen == pytest.approx(expected, abs=4 * math.sqrt(2000 * 0.0165))
    assert epsilon == 2.0
