"""Every question is charged, to the ledger of the data set, before a coin is tossed; nothing tells about single values."""

import math

import numpy as np
import pytest
import torch

import apportion as ap
from apportion.accounting.gaussian import gaussian_delta
from apportion.accounting.ledger import Ledger
from apportion.accounting.run_filter import GaussianRuns, SumOfRuns
from apportion.curator.randomness import Randomness
from apportion.event import Choice, Event
from apportion.statistics import Exponential, Partition, Sample

QUESTIONS = {
    "count": lambda data, **terms: ap.statistics.count(data, **terms),
    "histogram": lambda data, **terms: ap.statistics.histogram(data, classes=[0, 1], **terms),
    "mean": lambda data, **terms: ap.statistics.mean(data, bounds=(0, 1), **terms),
    "quantile": lambda data, **terms: ap.statistics.quantile(data, bounds=(0, 1), **terms),
    "personal count": lambda data, **terms: ap.statistics.count(
        data, epsilons=[0.1, 0.25], method=Exponential(), **terms
    ),
    "personal median": lambda data, **terms: ap.statistics.quantile(
        data, bounds=(0, 1), epsilons=[0.1, 0.25], method=Exponential(), **terms
    ),
    "sampled median": lambda data, **terms: ap.statistics.quantile(
        data, bounds=(0, 1), epsilons=[0.1, 0.25], method=Sample(), **terms
    ),
}
every_question = pytest.mark.parametrize("question", QUESTIONS)


def budget_of(epsilon=0.25):
    return ap.Budget(epsilon=epsilon, delta=1e-6, unit=ap.Record())


@pytest.fixture
def ledger(tmp_path):
    path = tmp_path / "patients.sqlite"
    Ledger.create(path, name="patients", rule=SumOfRuns(ap.Budget(epsilon=1.0, delta=1e-5, unit=ap.Record()))).close()
    return path


def rows(path):
    books = Ledger.open(path)
    found = [(run.plan, run.terms, run.cost) for run in books.runs()], list(books.events())
    books.close()
    return found


@every_question
def test_a_question_is_one_admission_and_one_charge(question, ledger):
    found = QUESTIONS[question]([0.0, 1.0], budget=budget_of(), storage=ap.Storage(ledger=ledger))
    event = Event(1.0, math.inf, (Choice(0.25),))
    ((plan, terms, cost),), charges = rows(ledger)
    assert plan == (event,)
    assert charges == [event]
    assert terms == f"statistic: {found.of}"
    assert found.epsilon == 0.25
    assert found.private
    assert (cost.main, cost.failure) == (0.25, 0.0), "ε, and no δ: the release is pure"
    assert found.left == pytest.approx(0.75)


def test_under_the_gaussian_rule_the_curve_of_a_pure_release_is_charged(tmp_path):
    """(1−d)·δ_μ(e) + d ≥ (e^ε − e^e)/(1 + e^ε), which is δ(e) of an ε-DP release at worst."""
    path, budget = tmp_path / "gaussian.sqlite", budget_of(0.1)
    Ledger.create(
        path, name="patients", rule=GaussianRuns(ap.Budget(epsilon=4.0, delta=1e-5, unit=ap.Record()))
    ).close()
    found = ap.statistics.count([1.0], budget=budget, storage=path)
    ((_, _, cost),), _ = rows(path)
    points = np.linspace(0.0, 0.1, 50)
    worst = (math.exp(0.1) - np.exp(points)) / (1 + math.exp(0.1))
    assert all(
        gaussian_delta(math.sqrt(cost.main), e) >= delta - cost.failure for e, delta in zip(points, worst, strict=True)
    )
    assert math.sqrt(cost.main) < 1.3 * 0.1
    assert 3.9 < found.left < 4.0


@every_question
def test_the_charge_is_durable_before_random_bits_are_handed_out(question, ledger, monkeypatch):
    seen, next_draw = [], Randomness.next_draw

    def watch(self):
        seen.append(len(rows(ledger)[1]))
        return next_draw(self)

    monkeypatch.setattr(Randomness, "next_draw", watch)
    QUESTIONS[question]([0.0, 1.0], budget=budget_of(), storage=str(ledger))
    assert seen == [1]


@every_question
def test_what_does_not_fit_is_refused_and_nothing_is_drawn(question, tmp_path, monkeypatch):
    path = tmp_path / "small.sqlite"
    Ledger.create(path, name="small", rule=SumOfRuns(budget_of(0.3))).close()
    QUESTIONS[question]([0.0, 1.0], budget=budget_of(), storage=path)
    monkeypatch.setattr(Randomness, "next_draw", lambda self: pytest.fail("drawn without a charge"))
    with pytest.raises(ap.BudgetExhausted, match="does not cover"):
        QUESTIONS[question]([0.0, 1.0], budget=budget_of(), storage=path)
    assert len(rows(path)[1]) == 1


def test_the_largest_budget_is_charged(ledger):
    groups = {"strict": (0.1, 0.5), "loose": (0.3, 0.5)}
    budget = ap.Budget.of_groups(groups, delta=1e-6, unit=ap.Record())
    terms = {"budget": budget, "labels": ["strict", "loose"], "storage": ledger}
    found = ap.statistics.mean([0.0, 1.0], bounds=(0, 1), method=Partition(by="privacy", bins=1), **terms)
    assert found.epsilon == 0.3
    assert dict(found.paid) == {"strict": 0.1, "loose": 0.1}
    assert rows(ledger)[1] == [Event(1.0, math.inf, (Choice(0.3),))]


def test_a_seed_is_refused_beside_a_ledger_and_said_elsewhere(ledger):
    with pytest.raises(ap.InvalidArgument, match="not private"):
        ap.statistics.count([1.0], budget=budget_of(), storage=ledger, seed=0)
    assert rows(ledger) == ([], [])
    assert not ap.statistics.count([1.0], budget=budget_of(), seed=0).private
    same = [ap.statistics.count([1.0], budget=budget_of(), seed=5).value for _ in range(2)]
    assert same[0] == same[1]
    assert len({ap.statistics.count([1.0], budget=budget_of(0.01)).value for _ in range(4)}) > 1


def test_without_a_ledger_there_is_a_record_of_its_own(tmp_path):
    found = ap.statistics.count([1.0], budget=budget_of(), storage=ap.Storage(folder=tmp_path / "first"))
    assert found.left is None
    assert len(rows(tmp_path / "first" / "secret" / "ledger.sqlite")[1]) == 1
    with pytest.raises(ap.InvalidArgument, match="earlier run"):
        ap.statistics.count([1.0], budget=budget_of(), storage=ap.Storage(folder=tmp_path / "first"))
    for storage in (
        ap.Storage(folder=tmp_path / "b", ledger=tmp_path / "c"),
        ap.Storage(folder=tmp_path / "b", resume=True),
        7,
    ):
        with pytest.raises(ap.InvalidArgument, match="storage"):
            ap.statistics.count([1.0], budget=budget_of(), storage=storage)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e300, -1e300, None, "nonsense", object(), 10**400, 1j])
@pytest.mark.parametrize("outside", ["clip", "drop"])
def test_no_value_is_an_error_or_seen_in_one(bad, outside):
    terms = {"budget": budget_of(), "outside": outside, "seed": 0}
    for data in ([0.5, bad], np.array([0.5, bad], dtype=object)):
        ap.statistics.mean(data, bounds=(0, 1), **terms)
        ap.statistics.histogram(data, edges=[0, 1, 2], **terms)
        ap.statistics.quantile(data, bounds=(0, 1), **terms)


def test_columns_of_other_libraries_are_read():
    class Series:
        def __array__(self, dtype=None, copy=None):
            return np.array([1, 2, None], dtype=object)

    expected = ap.statistics.count([1.0, 2.0], budget=budget_of(), seed=0).value
    columns = [np.array([1, 2]), torch.tensor([1.0, 2.0]), np.array([True, False]), range(2), (1, 2)]
    for column in (*columns, Series()):
        assert ap.statistics.count(column, budget=budget_of(), seed=0).value == expected


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda **terms: ap.statistics.count(np.zeros((2, 2)), **terms), "not a column"),
        (lambda **terms: ap.statistics.count(np.array(["a"]), **terms), "not a column"),
        (lambda **terms: ap.statistics.count(3.0, **terms), "not a column"),
        (lambda **terms: ap.statistics.mean([1.0], bounds=(1, 1), **terms), "empty"),
        (lambda **terms: ap.statistics.mean([1.0], bounds=(2, 1), **terms), "empty"),
        (lambda **terms: ap.statistics.mean([1.0], bounds=(0, math.inf), **terms), "bounds"),
        (lambda **terms: ap.statistics.mean([1.0], bounds=(0, 1e301), **terms), "endless"),
        (lambda **terms: ap.statistics.mean([1.0], bounds=3, **terms), "two numbers"),
        (lambda **terms: ap.statistics.mean([1.0], bounds=(0, 1), outside="keep", **terms), "outside"),
        (lambda **terms: ap.statistics.quantile([1.0], 0.0, bounds=(0, 1), **terms), "level"),
        (lambda **terms: ap.statistics.histogram([1.0], **terms), "one of them"),
        (lambda **terms: ap.statistics.histogram([1.0], edges=[0, 1], classes=[0, 1], **terms), "one of them"),
        (lambda **terms: ap.statistics.histogram([1.0], edges=[1, 0], **terms), "ascending"),
        (lambda **terms: ap.statistics.histogram([1.0], edges=[0], **terms), "two or more"),
        (lambda **terms: ap.statistics.histogram([1.0], classes=["a", "b"], **terms), "two or more"),
        (lambda **terms: ap.statistics.histogram([1.0], classes=[1, 1], **terms), "different"),
    ],
)
def test_bad_questions_are_refused_before_they_are_charged(ask, words, ledger):
    with pytest.raises(ap.InvalidArgument, match=words):
        ask(budget=budget_of(), storage=ledger)
    assert rows(ledger) == ([], [])


def test_an_answer_can_be_stored():
    found = ap.statistics.histogram([0.0, 1.0], classes=[0, 1], budget=budget_of(), seed=0)
    assert found.to_json() == {
        "of": "histogram",
        "value": list(found.value),
        "scale": 4.0,
        "standard_error": pytest.approx(5.64, abs=0.01),
        "epsilon": 0.25,
        "paid": {"everybody": 0.25},
        "left": None,
        "private": False,
        "classes": [],
        "delta": 0.0,
    }
