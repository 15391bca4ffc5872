"""Counts, histograms and means: the exact law of what is released, on data sets that differ in one person."""

import math

import numpy as np
import pytest
from exact_laws import largest_loss, observe

import apportion as ap
from apportion.statistics import Adaptive, Method, Part, Partition, Sample

VALUES = [0.0, 0.2, 1.0, 0.7, 0.2]
EPSILONS = [0.4, 0.4, 1.0, 1.7, 1.0]
METHODS = {
    "sample-max": Sample(),
    "sample-mean": Sample(threshold="mean"),
    "sample-above": Sample(threshold=3.0),
    "privacy": Partition(by="privacy", bins=2),
    "utility": Partition(),
    "rounds": Adaptive(population=5),
    "two-rounds": Adaptive(population=1000, rounds=2),
}
QUESTIONS = {
    "count": lambda data, **terms: ap.statistics.count(data, **terms),
    "histogram": lambda data, **terms: ap.statistics.histogram(data, edges=[0.0, 0.5, 1.0], **terms),
    "mean": lambda data, **terms: ap.statistics.mean(data, bounds=(0.0, 1.0), **terms),
}


def budget_of(epsilon=2.0):
    return ap.Budget(epsilon=epsilon, delta=1e-6, unit=ap.Record())


def without(values, i):
    """The same list of people; one of them has no value."""
    return [math.nan if place == i else value for place, value in enumerate(values)]


def executed(monkeypatch, question, values, **terms):
    return observe(monkeypatch, lambda: QUESTIONS[question](values, seed=0, **terms), len(values))


@pytest.mark.parametrize("question", QUESTIONS)
def test_one_record_changes_the_law_by_epsilon_and_no_more(monkeypatch, question):
    """Also by no less: with noise that is 5 % too small, or a sensitivity that is too large, this would be another number."""
    everybody = executed(monkeypatch, question, VALUES, budget=budget_of(0.8))
    for i in range(len(VALUES)):
        rest = VALUES[:i] + VALUES[i + 1 :]
        loss = largest_loss(everybody, executed(monkeypatch, question, rest, budget=budget_of(0.8)))
        assert loss == pytest.approx(0.8, rel=1e-9)


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("method", METHODS)
def test_a_person_changes_the_law_by_their_own_epsilon(monkeypatch, question, method):
    terms = {"budget": budget_of(), "epsilons": EPSILONS, "method": METHODS[method]}
    everybody = executed(monkeypatch, question, VALUES, **terms)
    paid = QUESTIONS[question](VALUES, seed=0, **terms).paid
    for i, epsilon in enumerate(EPSILONS):
        loss = largest_loss(everybody, executed(monkeypatch, question, without(VALUES, i), **terms))
        assert loss <= epsilon * (1 + 1e-9)
        assert loss == pytest.approx(paid[str(epsilon)], rel=1e-6), "what is said to be paid is what is paid"
    assert max(paid.values()) <= max(EPSILONS) * (1 + 1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_presence_itself_is_protected_where_levels_and_shares_are_declared(monkeypatch, method):
    """A record less, not only a value less: no choice follows who is there."""
    budget = ap.Budget.of_groups({"a": (0.4, 0.4), "b": (1.0, 0.4), "c": (1.7, 0.2)}, delta=1e-6, unit=ap.Record())
    labels = ["a", "a", "b", "c", "b"]
    everybody = executed(monkeypatch, "count", VALUES, budget=budget, labels=labels, method=METHODS[method])
    for i, epsilon in enumerate(EPSILONS):
        fewer = VALUES[:i] + VALUES[i + 1 :], labels[:i] + labels[i + 1 :]
        rest = executed(monkeypatch, "count", fewer[0], budget=budget, labels=fewer[1], method=METHODS[method])
        assert largest_loss(everybody, rest) <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize("method", ["sample-max", "sample-mean", "privacy", "utility", "rounds"])
def test_equal_budgets_are_the_ordinary_mechanism(monkeypatch, method):
    terms = {"epsilons": [0.8] * 5, "method": METHODS[method]}
    personal = executed(monkeypatch, "mean", VALUES, budget=budget_of(0.8), **terms)
    assert personal == executed(monkeypatch, "mean", VALUES, budget=budget_of(0.8))
    for question in QUESTIONS:
        one = QUESTIONS[question](VALUES, budget=budget_of(0.8), seed=3, **terms)
        assert one.value == QUESTIONS[question](VALUES, budget=budget_of(0.8), seed=3).value


def test_everybody_pays_all_they_allow_by_sampling_and_in_rounds():
    for method in (Sample(), Adaptive(population=5)):
        found = ap.statistics.count(VALUES, budget=budget_of(), epsilons=EPSILONS, method=method, seed=0)
        assert list(found.paid.values()) == pytest.approx([0.4, 1.0, 1.7], rel=1e-9)
        assert found.epsilon == 1.7


def test_a_method_that_asks_too_much_is_refused_before_it_is_charged(tmp_path):
    class Greedy(Method):
        def parts(self, roster):
            return (Part((1.0,) * len(roster.epsilons), roster.largest),)

    with pytest.raises(ap.BudgetExhausted, match=r"asks '0\.4' for ε = 1\.7, and 0\.4 is allowed"):
        ap.statistics.count(
            VALUES, budget=budget_of(), epsilons=EPSILONS, method=Greedy(), storage=ap.Storage(folder=tmp_path / "a")
        )
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("method", METHODS)
def test_estimates_are_for_everybody_and_as_far_off_as_they_say(method):
    """Over many data sets from one population: errors have mean 0, and the standard error that is said."""
    budget = ap.Budget.of_groups({"a": (0.4, 0.3), "b": (1.0, 0.5), "c": (1.7, 0.2)}, delta=1e-6, unit=ap.Record())
    generator = np.random.default_rng(0)
    errors, said = {"count": [], "mean": []}, {"count": [], "mean": []}
    for seed in range(60):
        values, labels = generator.integers(0, 2, 500), generator.choice(["a", "b", "c"], 500, p=[0.3, 0.5, 0.2])
        for question, truth in (("count", 500), ("mean", values.mean())):
            found = QUESTIONS[question](values, budget=budget, labels=labels, method=METHODS[method], seed=seed)
            errors[question].append(found.value - truth)
            said[question].append(found.standard_error)
    for question, found in errors.items():
        deviation = np.std(found)
        assert abs(np.mean(found)) < 4 * deviation / 60**0.5
        assert 0.7 * np.mean(said[question]) < deviation < 1.35 * np.mean(said[question])


def test_without_noise_the_answers_are_exact(monkeypatch):
    from apportion.statistics import noisy_sums

    monkeypatch.setattr(noisy_sums, "draw_discrete_laplace", lambda scale, stream: 0)
    terms = {"budget": budget_of(), "seed": 0}
    column = [1.0, 2.0, math.nan, math.inf, -5.0, 2.5, "nonsense", None]
    assert ap.statistics.count(column, **terms).value == 5
    assert ap.statistics.count(column, bounds=(1, 2), **terms).value == 2
    assert ap.statistics.mean(column, bounds=(0, 4), **terms).value == pytest.approx(
        (1 + 2 + 4 + 0 + 2.5) / 5, abs=1e-5
    )
    dropped = ap.statistics.mean(column, bounds=(0, 4), outside="drop", **terms)
    assert dropped.value == pytest.approx((1 + 2 + 2.5) / 3, abs=1e-5)
    assert ap.statistics.histogram(column, edges=[0, 2, 2.5], **terms).value == (2, 3)
    assert ap.statistics.histogram(column, edges=[0, 2, 2.5], outside="drop", **terms).value == (1, 2)
    assert ap.statistics.histogram(column, classes=[2.5, 1, 7], **terms).value == (1, 1, 0)
    counts = ap.statistics.histogram([0] * 6 + [1] * 2, classes=[0, 1, 2], **terms)
    assert ap.statistics.class_weights(counts) == pytest.approx((0.5, 1.5, 3.0))
    with pytest.raises(ap.InvalidArgument, match="no classes"):
        ap.statistics.class_weights(ap.statistics.count(column, **terms))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("epsilons", [[1e-9, 1e-6, 1.0], [300.0, 700.0, 900.0]])
def test_extreme_budgets_have_finite_answers(method, epsilons):
    terms = {"budget": budget_of(1000.0), "epsilons": epsilons, "method": METHODS[method], "seed": 0}
    found = ap.statistics.count([1.0, 2.0, 3.0], **terms)
    assert math.isfinite(found.value)
    assert math.isfinite(found.standard_error)
    assert all(paid <= float(name) * (1 + 1e-9) for name, paid in found.paid.items())


def test_the_mean_of_next_to_nobody_is_the_middle():
    found = ap.statistics.mean([], bounds=(2.0, 4.0), budget=budget_of(50.0), seed=0)
    assert (found.value, found.standard_error) == (3.0, 1.0)
    many = [ap.statistics.mean([2.0], bounds=(2.0, 4.0), budget=budget_of(0.5), seed=seed).value for seed in range(50)]
    assert all(2.0 <= value <= 4.0 for value in many)


def test_a_mean_has_half_the_variance_of_a_noisy_sum_over_a_noisy_count():
    values = [0.5] * 1000
    answers = [ap.statistics.mean(values, bounds=(0, 1), budget=budget_of(1.0), seed=seed).value for seed in range(300)]
    assert np.var(answers) == pytest.approx(1 / 1000**2, rel=0.3)  # √2·½·√2/(n·ε); the others have √2/(n·ε)
