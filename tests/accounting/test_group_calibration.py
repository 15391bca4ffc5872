"""Noise, rates and thresholds with which every group spends its own budget: the published numbers, ours, and the limits."""

import math
from dataclasses import replace

import pytest

import apportion as ap
from apportion.accounting import group_calibration
from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.accounting.comparisons import COMPARISONS
from apportion.accounting.group_calibration import GroupProblem, largest_rate, solve_clips, solve_rates
from apportion.errors import InvalidArgument
from apportion.event import Event, rate_of_any
from apportion.planning import plan_steps
from apportion.sampling import Sampling
from apportion.strategies.recipes import named
from people import GROUPS, group_budget

SHARES = (0.34, 0.43, 0.23)
MNIST = Sampling.declare(population=60_000, batch_size=512, steps=3515)
CIFAR = Sampling.declare(population=50_000, batch_size=1024, steps=1464)
CIFAR_CASES = {
    1: ((1.0, 2.0, 3.0), 1.966, (0.0115, 0.0217, 0.0313), 2.011, (0.610, 1.076, 1.436)),
    2: ((1.0, 10.0, 20.0), 0.811, (0.0006, 0.0237, 0.0439), 0.948, (0.287, 1.244, 1.598)),
    3: ((1.0, 2.0, 20.0), 1.034, (0.0036, 0.0087, 0.0675), 1.387, (0.421, 0.742, 2.339)),
}
"""Monir et al., table 9: ε of the groups; σ and rates of Sample; σ and factors of Scale (methods.md 10.3 and 10.4)."""
SMALL = {"population": 10_000, "sample_rate": 0.02, "steps": 60}


def solve(people, sampling=MNIST, epsilons=(1.0, 2.0, 3.0), accountant=None):
    budget = group_budget(dict(zip("abc", zip(epsilons, SHARES, strict=True), strict=True)))
    recipe = ap.Recipe(clip=ap.clip.Fixed(0.2), people=people)
    return plan_steps(recipe, budget, sampling, accountant=accountant)


def rates(plan):
    return [plan.sampling.sample_rate * one.rate for one in plan.factors]


def clips(plan):
    return [one.clip for one in plan.factors]


def multipliers_of_groups(plan):
    return [plan.multipliers[0] / one.clip for one in plan.factors]


# --- published ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_published_noise_and_rates_of_sample():
    plan = solve(ap.people.Sample(), accountant=COMPARISONS["rdp"])
    assert plan.multipliers[0] == pytest.approx(1.368, abs=0.01)
    assert rates(plan) == pytest.approx([0.005, 0.009, 0.013], abs=5e-4)


def test_the_published_noise_and_thresholds_of_scale():
    plan = solve(ap.people.Scale(mean="arithmetic"), accountant=COMPARISONS["rdp"])
    assert plan.multipliers[0] == pytest.approx(1.545, abs=0.01)
    assert [0.2 * one for one in clips(plan)] == pytest.approx([0.141, 0.236, 0.299], abs=1e-3)
    harmonic = solve(ap.people.Scale(), accountant=COMPARISONS["rdp"])
    assert harmonic.multipliers[0] == pytest.approx(1.418, abs=0.005)
    assert [0.2 * one for one in clips(harmonic)] == pytest.approx([0.129, 0.216, 0.275], abs=1e-3)


@pytest.mark.parametrize("case", CIFAR_CASES)
def test_the_cases_of_cifar_by_scale(case):
    epsilons, _, _, scale, factors = CIFAR_CASES[case]
    plan = solve(ap.people.Scale(), CIFAR, epsilons, COMPARISONS["rdp"])
    assert plan.multipliers[0] == pytest.approx(scale, abs=0.005)
    assert clips(plan) == pytest.approx(factors, abs=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("case", CIFAR_CASES)
def test_the_cases_of_cifar_by_sample(case):
    epsilons, scale, expected, _, _ = CIFAR_CASES[case]
    plan = solve(ap.people.Sample(), CIFAR, epsilons, COMPARISONS["rdp"])
    assert plan.multipliers[0] == pytest.approx(scale, abs=0.01)
    assert rates(plan) == pytest.approx(expected, abs=2e-4)


# --- ours --------------------------------------------------------------------------------------------------------------------------


def test_our_accountant_needs_less_noise_for_the_same_budgets():
    assert solve(ap.people.Sample()).multipliers[0] == pytest.approx(1.30, abs=0.02)
    assert solve(ap.people.Scale()).multipliers[0] == pytest.approx(1.345, abs=0.01)
    arithmetic = solve(ap.people.Scale(mean="arithmetic"))
    assert arithmetic.multipliers[0] == pytest.approx(1.4537, abs=2e-3)
    assert multipliers_of_groups(arithmetic) == pytest.approx([2.041, 1.240, 0.985], abs=2e-3)


@pytest.mark.slow
def test_the_privacy_loss_distributions_of_others_agree():
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    plan = solve(ap.people.Scale(mean="arithmetic"))
    for multiplier, epsilon in zip(multipliers_of_groups(plan), (1.0, 2.0, 3.0), strict=True):
        accountant = PLDAccountant()
        event = PoissonSampledDpEvent(512 / 60_000, GaussianDpEvent(multiplier))
        accountant.compose(SelfComposedDpEvent(event, 3515))
        assert 0.99 * epsilon <= accountant.get_epsilon(1e-5) <= 1.001 * epsilon


RECIPES = {
    "constant": named("abadi"),
    "yu-validation": replace(named("yu-validation"), noise=ap.noise.Validation(counts=(20, 20, 20))),
    "adadp": named("adadp"),
    "per-layer quantile": named("he-global"),
    "du-dynamic": named("du-dynamic"),
}


@pytest.mark.parametrize("spare", [0, 5])
@pytest.mark.parametrize("people", [ap.people.Sample(), ap.people.Scale(), ap.people.Scale(mean="arithmetic")], ids=str)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "du-dynamic")) for name in RECIPES]
)
def test_every_group_ends_at_its_own_budget_and_never_above(name, people, spare):
    plan = ap.plan(replace(RECIPES[name], people=people), budget=group_budget(), spare=spare, **SMALL)
    for group, (epsilon, share) in GROUPS.items():
        assert 0.99 * epsilon <= plan.group_epsilon(group) <= epsilon
        assert plan.factors[plan.budget.group_number(group)].share == share
    assert 0.99 * 3.0 <= plan.epsilon <= 3.0


def test_scale_with_du_dynamic_in_a_short_run():
    plan = ap.plan(
        replace(named("du-dynamic"), people=ap.people.Scale()),
        budget=group_budget(),
        population=10_000,
        sample_rate=0.1,
        steps=8,
    )
    assert all(0.99 * epsilon <= plan.group_epsilon(name) <= epsilon for name, (epsilon, _) in GROUPS.items())


def test_thresholds_are_c_on_average_and_rates_q():
    scale = ap.plan(replace(named("abadi"), people=ap.people.Scale()), budget=group_budget(), **SMALL)
    assert math.fsum(one.share * one.clip for one in scale.factors) == pytest.approx(1.0, rel=1e-12)
    assert {one.rate for one in scale.factors} == {1.0}
    sample = ap.plan(replace(named("abadi"), people=ap.people.Sample()), budget=group_budget(), **SMALL)
    assert math.fsum(one.share * one.rate for one in sample.factors) == pytest.approx(1.0, rel=2e-3)
    assert math.fsum(one.share * one.rate for one in sample.factors) <= 1 + 1e-12
    assert {one.clip for one in sample.factors} == {1.0}


def test_one_group_alone_is_ordinary_training():
    ordinary = ap.plan("abadi", budget=ap.Budget(epsilon=2.0, delta=1e-5, unit=ap.Record()), **SMALL)
    for people in (ap.people.Uniform(), ap.people.Scale(), ap.people.Sample()):
        budget = group_budget({"all": (2.0, 1.0)})
        plan = ap.plan(replace(named("abadi"), people=people), budget=budget, **SMALL)
        assert plan.multipliers[0] == pytest.approx(ordinary.multipliers[0], rel=5e-3)
        (one,) = plan.factors
        assert (one.share, one.rate, one.clip) == (1.0, pytest.approx(1.0, rel=2e-3), pytest.approx(1.0, rel=1e-9))
        assert 1.98 <= plan.group_epsilon("all") <= 2.0


def test_everybody_alike_gets_the_smallest_budget():
    plan = ap.plan(replace(named("abadi"), people=ap.people.Uniform()), budget=group_budget(), **SMALL)
    assert all(0.99 <= plan.group_epsilon(name) <= 1.0 for name in GROUPS)
    assert plan.epsilon <= 1.0


@pytest.mark.parametrize("people", [ap.people.Sample(), ap.people.Scale()], ids=str)
def test_with_coins_for_records_groups_pay_for_as_many_as_a_user_may_have(people):
    unit = ap.User(coins="record", k_max=4)
    plan = ap.plan(replace(named("abadi"), people=people), budget=group_budget(unit=unit), **SMALL)
    accountant = PrivacyLossAccountant()
    for (name, (epsilon, _)), one in zip(GROUPS.items(), plan.factors, strict=True):
        rate = 1 - (1 - 0.02 * one.rate) ** 4
        event = Event(rate, plan.multipliers[0] / one.clip)
        assert plan.group_epsilon(name) == pytest.approx(accountant.epsilon({event: 60}, 1e-5), rel=1e-6)
        assert 0.99 * epsilon <= plan.group_epsilon(name) <= epsilon


def test_weighted_counts_cost_as_little_as_the_gradient():
    """theory.md 10.5: s_p = 0.42, z = 1.2, a tenth of the budget for the count."""
    accountant, rate = PrivacyLossAccountant(), 256 / 60_000
    weighted = Event(rate, 1.2).noise_multiplier / 0.42
    assert accountant.epsilon({Event(rate, weighted): 5000}, 1e-5) == pytest.approx(0.378, abs=1e-3)
    gradient, count = 0.42 * math.sqrt(0.9) / 1.2, math.sqrt(0.1) / 1.2
    unweighted = math.hypot(gradient, count) ** -1
    assert accountant.epsilon({Event(rate, unweighted): 5000}, 1e-5) == pytest.approx(0.474, abs=1e-3)


# --- limits ------------------------------------------------------------------------------------------------------------------------


def test_a_budget_that_no_rate_reaches_is_refused_with_the_one_that_is():
    with pytest.raises(InvalidArgument, match=r"even a member of every batch spends only (\d+\.?\d*)") as caught:
        ap.plan(
            replace(named("abadi"), people=ap.people.Sample()),
            budget=group_budget({"strict": (1.0, 0.9), "loose": (50.0, 0.1)}),
            population=1_000,
            sample_rate=0.3,
            steps=5,
        )
    reachable = float(str(caught.value).split("at most ")[1].split(" ")[0])
    assert 1.0 < reachable < 50.0
    plan = ap.plan(
        replace(named("abadi"), people=ap.people.Sample()),
        budget=group_budget({"strict": (1.0, 0.9), "loose": (0.9 * reachable, 0.1)}),
        population=1_000,
        sample_rate=0.3,
        steps=5,
    )
    assert plan.group_epsilon("loose") == pytest.approx(0.9 * reachable, rel=0.01)


@pytest.mark.parametrize(("rate", "loose"), [(0.9, 1.1), (0.99, 1.01), (1e-4, 1.1), (1e-4, 4.0)])
def test_rates_near_one_and_near_zero(rate, loose):
    budget = group_budget({"strict": (1.0, 0.5), "loose": (loose, 0.5)})
    plan = ap.plan(
        replace(named("abadi"), people=ap.people.Sample()), budget=budget, population=10_000, sample_rate=rate, steps=5
    )
    assert all(0 < one <= 1 for one in rates(plan))
    assert 0.99 * 1.0 <= plan.group_epsilon("strict") <= 1.0
    assert 0.99 * loose <= plan.group_epsilon("loose") <= loose


def test_the_largest_rate_is_found_from_any_guess():
    accountant = PrivacyLossAccountant()

    def price(rate):
        return accountant.epsilon({Event(rate, 1.0): 100}, 1e-5)

    for epsilon in (0.3, 2.0, 20.0):
        for guess in (1e-6, 0.1, 0.9, 1.0):
            assert 0.99 * epsilon <= price(largest_rate(price, epsilon, guess)) <= epsilon
    assert largest_rate(price, 1e4, 0.1) == 1.0


def test_many_different_multipliers_are_searched_with_few_and_priced_with_all(monkeypatch):
    monkeypatch.setattr(group_calibration, "COARSE", 3)
    budget = group_budget()
    shape = [1 + step / 10 for step in range(8)]
    problem = GroupProblem(budget.groups, shape, 0.02, 1e-5, PrivacyLossAccountant())
    assert len(set(problem.coarse().shape)) == 3
    for found in (solve_rates(problem), solve_clips(problem, "harmonic")):
        for group, one in zip(budget.groups, found.factors, strict=True):
            events = [Event(0.02 * one.rate, found.scale * r / one.clip) for r in shape]
            spent = PrivacyLossAccountant().epsilon(dict.fromkeys(events, 1), 1e-5)
            assert 0.99 * group.epsilon <= spent <= group.epsilon


def test_the_rate_of_any_coin():
    assert rate_of_any(0.1, 1) == 0.1
    assert rate_of_any(0.1, 3) == pytest.approx(1 - 0.9**3, rel=1e-9)
    assert rate_of_any(0.1, 3) >= 1 - 0.9**3
    assert rate_of_any(1.0, 5) == 1.0
    assert rate_of_any(1e-18, 4) == pytest.approx(4e-18)


# --- what is refused ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "argument"),
    [
        ({"a": (0.0, 0.5), "b": (1.0, 0.5)}, "group.epsilon"),
        ({"a": (-1.0, 0.5), "b": (1.0, 0.5)}, "group.epsilon"),
        ({"a": (math.inf, 0.5), "b": (1.0, 0.5)}, "group.epsilon"),
        ({"a": (1.0, 0.0), "b": (1.0, 1.0)}, "group.share"),
        ({"a": (1.0, 0.5), "b": (1.0, 0.4)}, "groups"),
        ({"a": 1.0}, "groups"),
        ({}, "groups"),
        ({"": (1.0, 1.0)}, "group.name"),
        ([("a", 1.0, 1.0)], "groups"),
    ],
)
def test_groups_that_are_none_are_refused(groups, argument):
    with pytest.raises(InvalidArgument) as caught:
        ap.Budget.of_groups(groups, delta=1e-5, unit=ap.Record())
    assert caught.value.argument == argument


def test_two_groups_of_one_name_and_an_epsilon_that_does_not_cover_all():
    twice = [ap.budget.Group("a", 1.0, 0.5), ap.budget.Group("a", 2.0, 0.5)]
    with pytest.raises(InvalidArgument, match="one name"):
        ap.Budget.of_groups(twice, delta=1e-5, unit=ap.Record())
    groups = group_budget().groups
    with pytest.raises(InvalidArgument, match="largest"):
        ap.Budget(epsilon=1.0, delta=1e-5, unit=ap.Record(), groups=groups)


def test_what_has_no_common_rule_is_refused():
    alike = ap.Budget(epsilon=1.0, delta=1e-5, unit=ap.Record())
    with pytest.raises(InvalidArgument, match="same for everybody"):
        ap.plan(replace(named("abadi"), people=ap.people.Scale()), budget=alike, **SMALL)
    with pytest.raises(InvalidArgument, match="filter"):
        ap.plan("dp-agd", budget=group_budget(), **SMALL)
    with pytest.raises(InvalidArgument, match=r"multiplier"):
        ap.plan(replace(named("abadi"), noise=ap.noise.Constant(multiplier=1.0)), budget=group_budget(), **SMALL)
    with pytest.raises(InvalidArgument, match="unit"):
        ap.Budget(epsilon=1.0, delta=1e-5, unit=(ap.Record(), ap.User()))
    with pytest.raises(InvalidArgument, match="k_max"):
        ap.User(coins="record")
