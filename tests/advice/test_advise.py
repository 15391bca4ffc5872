"""Advice before a run: noise, an attacker's limits, δ, equal runs, and the table of kept results."""

import math
from pathlib import Path

import pytest
import torch

import apportion as ap
from apportion.accounting.accountant import PrivacyLossAccountant, count_events
from apportion.accounting.attacker import advantage, true_positive_rate
from apportion.advice import dry_run, kept_results, suggest_delta
from apportion.advice.rehearsal import make_synthetic, move_plan
from apportion.errors import InvalidArgument
from apportion.reporting.statements import bound_guesses, bound_true_positives, round_up_share

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "choosing-epsilon.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def advice():
    return ap.advise(population=4000, batch_size=400, steps=100)


def row_of(page, name):
    """The cells of a table's row, after its name."""
    line = next(line for line in page.splitlines() if line.startswith(f"| {name}"))
    return [cell.strip() for cell in line.split("|")[2:-1]]


def test_a_candidate_is_the_plan_of_its_budget(advice):
    for plan, one in [(advice.plans[2], advice.candidates[2])]:
        assert plan.budget.epsilon == one.epsilon
        assert plan.multipliers[-1] <= one.noise_multiplier <= plan.multipliers[0]
        assert one.noise_per_update == pytest.approx(one.noise_multiplier / 400)
        profile = PrivacyLossAccountant().profile(count_events(plan.tokens))
        assert one.right_guesses == pytest.approx((1 + advantage(profile)) / 2)
        assert one.recognised == pytest.approx(true_positive_rate(profile, 0.001))
        assert one.right_guesses < one.right_guesses_by_epsilon == bound_guesses(one.epsilon, advice.delta)


def test_under_a_filter_only_epsilon_and_delta_are_promised():
    one = ap.advise("dp-agd", population=4000, sample_rate=0.1, steps=4, epsilons=[1.0]).candidates[0]
    assert one.right_guesses == bound_guesses(1.0, 1e-5)
    assert one.recognised == bound_true_positives(1.0, 1e-5, 0.001)
    with pytest.raises(InvalidArgument, match="admits no run under a filter"):
        ap.advise("dp-agd", population=4000, sample_rate=0.1, steps=4, epsilons=[1.0], runs=2)


def test_the_table_of_the_page_is_what_is_computed(advice):
    by_epsilon = [f"{100 * one.right_guesses_by_epsilon:.6f}" for one in advice.candidates]
    shown = [cell.removesuffix(" %") for cell in row_of(PAGE, "right guesses, by ε and δ alone")]
    assert all(0 <= float(shown) - float(true) <= 0.1 for shown, true in zip(shown, by_epsilon, strict=True))
    guesses = [round_up_share(one.right_guesses).replace("\u00a0", " ") for one in advice.candidates]
    assert row_of(PAGE, "right guesses, 100 steps") == guesses
    recognised = [round_up_share(one.recognised, 2).replace("\u00a0", " ") for one in advice.candidates]
    assert row_of(PAGE, "used records recognised") == recognised
    stricter = ap.advise(population=4000, batch_size=400, steps=100, epsilons=[2.0], delta=1e-7).candidates[0]
    more = stricter.noise_multiplier / advice.candidates[3].noise_multiplier - 1
    assert f"needs {100 * more:.0f} % more noise" in PAGE


LONGER = [("default", 256 / 60_000, 5000), ("default", 0.1, 100), ("abadi", 0.05, 10), ("abadi", 0.0043, 30)]


@pytest.mark.parametrize(
    ("recipe", "rate", "steps"), [*(pytest.param(*one, marks=pytest.mark.slow) for one in LONGER), ("abadi", 0.004, 3)]
)
def test_equal_runs_of_the_page(recipe, rate, steps):
    """Every row, cut to two digits; another page says the first one too."""
    one = ap.advise(
        recipe, population=60_000, sample_rate=rate, steps=steps, epsilons=[2.0], delta=1e-6, runs=5
    ).candidates[0]
    shown = row_of(PAGE, f"`{recipe}`, {steps:,} steps, q = {'256/60,000' if steps == 5000 else f'{rate:g}'} ")
    assert shown == [f"{math.floor(100 * share) / 100:.2f}" for share in (one.shares.gaussian, one.shares.sum)]
    if steps == 5000:
        page = (DOCS / "ledger.md").read_text(encoding="utf-8")
        said = "Five equal runs under ε = 2 of 5,000 steps get {} each by the first and {:g} by the second"
        assert said.format(shown[0], float(shown[1])) in page
    assert one.shares.gaussian_noise < one.shares.sum_noise
    assert one.shares.cheaper == "gaussian"


def test_two_runs_of_few_steps_are_cheaper_by_the_sum():
    terms = {"population": 60_000, "sample_rate": 0.004, "steps": 3, "epsilons": [2.0], "delta": 1e-6}
    shares = ap.advise("abadi", **terms, runs=2).candidates[0].shares
    assert shares.sum_noise < shares.gaussian_noise
    assert shares.cheaper == "sum"


@pytest.mark.parametrize(("population", "delta"), [(1, 0.1), (10, 0.01), (11, 0.001), (4000, 1e-5), (60_000, 1e-6)])
def test_delta_is_at_most_a_tenth_of_one_over_the_population(population, delta):
    assert suggest_delta(population) == delta
    assert delta <= 1 / (10 * population) * (1 + 1e-12)


def test_a_delta_that_promises_nothing_is_called_too_large():
    with pytest.warns(UserWarning, match="delta"):
        said = ap.advise(population=100, sample_rate=0.5, steps=2, epsilons=[1.0], delta=0.05).delta_reason
    assert "too large" in said
    assert "Take 0.001 or less" in said


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"epsilons": []}, "epsilons"),
        ({"recipe": "non-private"}, "recipe"),
        ({"runs": 0}, "runs"),
        ({"steps": 0}, "steps"),
    ],
)
def test_what_cannot_be_advised_on_is_refused(settings, named):
    with pytest.raises(InvalidArgument, match=named):
        ap.advise(**{"population": 400, "sample_rate": 0.1, "steps": 10, "epsilons": [1.0]} | settings)


def test_kept_results_are_of_the_default_recipe_and_found_by_their_noise(advice):
    kept = kept_results()
    assert {one.recipe for one in kept} == {"default"}
    assert all(0 < one.accuracy < 1 and one.epsilon > 0 and one.noise_per_update > 0 for one in kept)
    for one in advice.candidates:
        ratios = [found.noise_per_update / one.noise_per_update for found in one.alike()]
        assert all(0.5 <= ratio <= 2 for ratio in ratios)
    assert advice.candidates[0].alike()


def test_the_noise_on_the_mean_gradient_is_that_of_the_real_run(advice):
    moved = move_plan(advice.plans[0], 1000)
    assert moved.multipliers == advice.plans[0].multipliers
    assert moved.expected_batch_size == pytest.approx(advice.plans[0].expected_batch_size)
    assert (moved.sampling.population, moved.sampling.sample_rate) == (1000, 0.4)


def test_batches_that_are_larger_than_the_public_data_are_refused(advice):
    with pytest.raises(InvalidArgument, match="batches of 400, and there are 300 public records"):
        move_plan(advice.plans[0], 300)


def test_records_that_nobody_declared_public_are_refused():
    advice = ap.advise(population=40, batch_size=8, steps=2, epsilons=[1.0])
    data = torch.randn(40, 3), torch.zeros(40, dtype=torch.long)
    terms = {"evaluate": ap.Public(data), "lr": 0.5}
    loss = torch.nn.functional.cross_entropy
    with pytest.raises(InvalidArgument, match="Public"):
        dry_run(advice.plans, lambda: torch.nn.Linear(3, 2), loss, data, **terms)


@pytest.mark.slow
def test_more_privacy_learns_less():
    made = make_synthetic(600)
    advice = ap.advise(population=600, batch_size=60, steps=40, epsilons=[0.05, 8.0])
    loss = torch.nn.functional.cross_entropy
    found = dry_run(
        advice.plans, lambda: torch.nn.Linear(20, 10), loss, ap.Public(made.train), evaluate=made.test, lr=4.0
    )
    assert found[0] < 0.5 < found[1]
    assert torch.equal(make_synthetic(600).train[0], made.train[0])
