"""Categories that nobody listed: the exact law of what is released, from what is executed, on data sets that differ in one record."""

import math
from collections import Counter

import pytest

import apportion as ap
from apportion.accounting.ledger import Ledger
from apportion.accounting.run_filter import GaussianRuns, SumOfRuns
from apportion.curator.randomness import Randomness
from apportion.event import Choice, Event
from apportion.statistics import thresholded
from apportion.statistics.thresholded import release_frequent, safe_threshold

TERMS = [(1.0, 1e-6), (0.1, 1e-6), (0.5, 1e-3), (3.0, 1e-9)]
every_term = pytest.mark.parametrize(("epsilon", "delta"), TERMS)


def budget_of(epsilon=1.0, delta=1e-6):
    return ap.Budget(epsilon=epsilon, delta=delta, unit=ap.Record())


def executed(monkeypatch, epsilon, delta):
    """The scale of the noise, and the smallest noise with which a text that one record has is released."""
    scales = []

    def released(noise):
        def constant(scale, stream):
            scales.append(float(scale))
            return noise

        with monkeypatch.context() as patch:
            patch.setattr(thresholded, "draw_discrete_laplace", constant)
            return bool(release_frequent({"once": 1}, epsilon, delta, None))

    low, high = 0, 10_000
    assert released(high)
    assert not released(low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if released(middle) else (middle, high)
    assert len(set(scales)) == 1
    return scales[0], high


def tail(scale, least):
    """P[X ≥ least] for P[X = k] ∝ e^{−|k|/scale}, least ≥ 1, by adding up."""
    base = math.exp(-1 / scale)
    return (1 - base) / (1 + base) * math.fsum(base**k for k in range(least, least + round(60 * scale) + 1))


@every_term
def test_one_record_moves_the_law_by_epsilon_and_delta_and_no_more(monkeypatch, epsilon, delta):
    scale, least = executed(monkeypatch, epsilon, delta)
    assert 1 / scale == pytest.approx(epsilon, rel=1e-12), (
        "what a count that is there changes by: ε, no more and no less"
    )
    assert tail(scale, least) <= delta * (1 + 1e-9), "what a new text shows itself with"
    assert tail(scale, least - 1) > delta, "one less would be too low"


def test_the_noise_is_the_discrete_laplace_of_the_whole_room():
    """Released counts of a frequent text vary as the noise should: 5 % less would be seen."""
    stream = Randomness.seeded(0).next_draw().noise
    found = [release_frequent({"often": 1000}, 0.2, 1e-6, stream)["often"] - 1000 for _ in range(20_000)]
    variance = sum(one**2 for one in found) / len(found)
    expected = 2 * math.exp(-0.2) / math.expm1(-0.2) ** 2
    assert variance == pytest.approx(
        expected, rel=0.045
    )  # four standard deviations of the estimate; 5 % in scale are 10 %
    assert abs(sum(found) / len(found)) < 4 * math.sqrt(expected / len(found))


def test_frequent_texts_are_found_and_single_ones_are_not():
    data = ["M"] * 400 + [" F"] * 500 + [f"name {i}" for i in range(300)] + [None, "", math.nan, object]
    found = ap.statistics.categories(data, budget=budget_of())
    assert found.classes == ("F", "M")
    assert found.value == pytest.approx((500, 400), abs=25)
    assert found.private
    assert ap.statistics.categories([], budget=budget_of()).classes == ()
    json = found.to_json()
    assert (json["classes"], json["delta"]) == (["F", "M"], 1e-6)


def test_single_texts_show_themselves_as_often_as_delta_allows():
    counts = Counter({f"{i}": 1 for i in range(20_000)})
    stream = Randomness.seeded(1).next_draw().noise
    shown = len(release_frequent(counts, 0.5, 0.01, stream))
    assert shown > 0.6 * 200 * math.exp(-0.5)
    assert shown < 200 + 4 * math.sqrt(200)


@pytest.mark.parametrize("rule", [SumOfRuns, GaussianRuns])
def test_epsilon_and_delta_are_charged_before_anything_is_drawn(rule, tmp_path, monkeypatch):
    path, limit = tmp_path / "patients.sqlite", ap.Budget(epsilon=3.0, delta=1e-3, unit=ap.Record())
    Ledger.create(path, name="patients", rule=rule(limit)).close()
    next_draw, seen = Randomness.next_draw, []

    def watch(self):
        books = Ledger.open(path)
        seen.extend((run.terms, run.cost) for run in books.runs())
        assert list(books.events()) == [Event(1.0, math.inf, (Choice(0.25),))]
        books.close()
        return next_draw(self)

    monkeypatch.setattr(Randomness, "next_draw", watch)
    ap.statistics.categories(["M"] * 200, budget=budget_of(0.25, 1e-6), storage=path)
    ((terms, cost),) = seen
    assert terms == "statistic: categories, delta = 1e-06"
    if rule is SumOfRuns:
        assert (cost.main, cost.failure) == (0.25, 1e-6)
    else:
        pure = Ledger.open(path)
        without = pure.rule.cost({Event(1.0, math.inf, (Choice(0.25),)): 1}, 1e-6, pure.capacity)
        pure.close()
        assert cost.main == pytest.approx(without.main)
        assert cost.failure == pytest.approx(without.failure - math.log1p(-1e-6), rel=1e-9)


def test_a_delta_that_does_not_fit_is_refused(tmp_path):
    path = tmp_path / "patients.sqlite"
    Ledger.create(path, name="patients", rule=SumOfRuns(ap.Budget(epsilon=3.0, delta=1e-7, unit=ap.Record()))).close()
    with pytest.raises(ap.BudgetExhausted):
        ap.statistics.categories(["M"], budget=budget_of(0.25, 1e-6), storage=path)


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"data": "text"}, "column of texts"),
        ({"data": 3}, "column of texts"),
        ({"budget": 1.0}, "not a Budget"),
        ({"budget": ap.Budget(epsilon=1.0, delta=1e-6, unit=ap.User())}, "protects single values"),
        ({"budget": budget_of(1e-300)}, "larger than any count"),
    ],
)
def test_what_makes_no_sense_is_refused(terms, words):
    with pytest.raises(ap.InvalidArgument, match=words):
        ap.statistics.categories(**({"data": ["a"], "budget": budget_of(), "seed": 0} | terms))


def test_a_pooled_column_protects_users(tmp_path):
    path, unit = tmp_path / "users.sqlite", ap.User()
    Ledger.create(path, name="users", rule=SumOfRuns(ap.Budget(epsilon=1.0, delta=1e-6, unit=unit))).close()
    budget = ap.Budget(epsilon=0.5, delta=1e-6, unit=unit)
    assert ap.statistics.mean([0.5] * 10, bounds=(0, 1), budget=budget, storage=path, pooled=True).epsilon == 0.5
    for pooled in (False, 1, None):
        with pytest.raises(ap.InvalidArgument, match="protects single values"):
            ap.statistics.mean([0.5], bounds=(0, 1), budget=budget, pooled=pooled)


def test_thresholds_grow_with_less_of_either():
    assert safe_threshold(1.0, 1e-6) == 15
    assert safe_threshold(0.1, 1e-6) > safe_threshold(1.0, 1e-6) > safe_threshold(1.0, 1e-3) >= 2
    assert safe_threshold(50.0, 0.5) == 2
