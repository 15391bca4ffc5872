"""PLD prices of batches that are asked for selections, against exact enumeration and the closed form of amplification."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from apportion import Budget, Record
from apportion.accounting.accountant import PrivacyLossAccountant, RunningPrice, total_variation, usable
from apportion.accounting.advanced import AdvancedCompositionAccountant
from apportion.accounting.central_limit import CentralLimitAccountant
from apportion.accounting.composition import Composition
from apportion.accounting.concentrated import DisjointEpochsAccountant, TruncatedConcentratedAccountant
from apportion.accounting.gaussian import gaussian_delta
from apportion.accounting.grid import choose_grid, make_cells
from apportion.accounting.interpolation import EXACT
from apportion.accounting.loss import discretise
from apportion.accounting.rules import Multiset, charge
from apportion.accounting.verification import independent_price
from apportion.errors import BudgetExhausted, InvalidArgument
from apportion.event import Choice, Event

PLD = PrivacyLossAccountant()
INFINITE = math.inf


def asked(rate, *epsilons, multiplier=INFINITE):
    return Event(rate, multiplier, tuple(Choice(epsilon) for epsilon in epsilons))


def budget(epsilon, delta=1e-5):
    return Budget(epsilon=epsilon, delta=delta, unit=Record())


def response_laws(epsilon, rate):
    """(P, Q) of randomised response on a Poisson batch, outcome by outcome: with the record, and without it."""
    odds = math.exp(epsilon)
    present, absent = np.array([odds, 1.0]) / (1 + odds), np.array([1.0, odds]) / (1 + odds)
    return (1 - rate) * absent + rate * present, absent


def exact_deltas(rate, epsilon, count, at):
    """δ of `count` amplified randomised responses for a removed and for an added record, by enumeration of how often each answer came."""
    with_record, without = response_laws(epsilon, rate)
    times = np.arange(count + 1)
    log_p, log_q = np.log(with_record), np.log(without)
    loss = times * (log_p - log_q)[0] + (count - times) * (log_p - log_q)[1]
    removed = binom.pmf(times, count, with_record[0]) @ np.maximum(0.0, -np.expm1(at - loss))
    added = binom.pmf(times, count, without[0]) @ np.maximum(0.0, -np.expm1(at + loss))
    return float(removed), float(added)


@pytest.mark.parametrize(
    ("rate", "epsilon", "count", "at"),
    [(0.1, 0.5, 20, 0.1), (0.1, 1.0, 100, 0.5), (0.02, 3.0, 200, 0.5), (0.5, 0.9, 10, 1.8), (0.1, 0.5, 100, 0.9)],
)
def test_amplified_choices_compose_as_by_enumeration_in_both_directions(rate, epsilon, count, at):
    exact = exact_deltas(rate, epsilon, count, at)
    assert exact[0] > 1.02 * exact[1]  # so that a mixed-up direction would be seen
    curve = PLD.curve({asked(rate, epsilon): count}, max(exact))
    for found, truth in zip((curve.removed.delta(at), curve.added.delta(at)), exact, strict=True):
        assert truth * (1 - 1e-9) <= found <= truth * 1.003
    assert curve.delta(at) == pytest.approx(exact[0], rel=1e-3)


@pytest.mark.parametrize(("epsilons", "at"), [((0.5,), 0.2), ((2.0,), 1.5), ((0.4, 0.9), 1.0)])
def test_without_sampling_a_choice_is_randomised_response(epsilons, at):
    """Of one or two choices: the outcomes are few enough to be listed."""
    masses, losses = np.ones(1), np.zeros(1)
    for epsilon in epsilons:
        present, absent = response_laws(epsilon, 1.0)
        losses = np.add.outer(losses, np.log(present / absent)).ravel()
        masses = np.multiply.outer(masses, present).ravel()
    exact = float(masses @ np.maximum(0.0, -np.expm1(at - losses)))
    found = PLD.curve({asked(1.0, *epsilons): 1}, exact).delta(at)
    assert exact <= found <= exact * (1 + 1e-4)


def test_the_price_of_one_choice_is_at_most_its_epsilon_and_nearly_that():
    assert 0.5 - 1e-3 < PLD.epsilon({asked(1.0, 0.5): 1}, 1e-6) <= 0.5 + 1e-3
    amplified = math.log1p(0.1 * math.expm1(0.5))
    assert amplified - 1e-3 < PLD.epsilon({asked(0.1, 0.5): 1}, 1e-6) <= amplified + 1e-3


# --- a Gaussian and choices on one batch -----------------------------------------------------------------------------------


def base_delta(multiplier, epsilons, at):
    """δ of the parts together without sampling: given the answers, which shift the loss, it is that of the Gaussian."""
    terms = [(1.0, 0.0)]
    for epsilon in epsilons:
        present, absent = response_laws(epsilon, 1.0)
        terms = [
            (mass * present[o], shift + math.log(present[o] / absent[o])) for mass, shift in terms for o in range(2)
        ]
    return math.fsum(mass * hockey_stick(1 / multiplier, at - shift) for mass, shift in terms)


def hockey_stick(mu, at):
    """δ_μ, also for ε < 0, where δ(ε) = 1 − e^ε + e^ε·δ(−ε)."""
    return gaussian_delta(mu, at) if at >= 0 else -math.expm1(at) + math.exp(at) * gaussian_delta(mu, -at)


def amplified(rate, base, at):
    """theory: δ_q(e) of a removed and of an added record from the curve δ_base without sampling."""
    removed = rate * base(math.log((math.expm1(at) + rate) / rate))
    left = 1 - (1 - rate) * math.exp(at)
    added = left * base(math.log(rate * math.exp(at) / left)) if left > 0 else 0.0
    return removed, added


@pytest.mark.parametrize("epsilons", [(), (0.5,), (0.3, 1.0)])
@pytest.mark.parametrize(("rate", "multiplier"), [(0.1, 1.0), (0.3, 2.0), (0.01, 0.8)])
@pytest.mark.parametrize("part", [0.0, 0.3, 0.6])
def test_the_parts_of_a_batch_are_composed_and_then_amplified_once(rate, multiplier, epsilons, part):
    at = -part * math.log1p(-rate)  # adding a record costs nothing beyond −ln(1 − q)
    removed, added = amplified(rate, lambda e: base_delta(multiplier, epsilons, e), at)
    assert min(removed, added) > 1e-5
    curve = PLD.curve({Event(rate, multiplier, tuple(map(Choice, epsilons))): 1}, removed)
    for found, truth in zip((curve.removed.delta(at), curve.added.delta(at)), (removed, added), strict=True):
        assert truth * (1 - 1e-9) <= found <= truth * 1.02


def test_amplifying_the_parts_one_by_one_would_be_too_cheap():
    """A record in the batch is in it for both: two amplified mechanisms tell less than one that is amplified once."""
    rate, multiplier, epsilon = 0.05, 1.0, 1.0
    together = {asked(rate, epsilon, multiplier=multiplier): 50}
    apart = {Event(rate, multiplier): 50, asked(rate, epsilon): 50}
    right, wrong = PLD.epsilon(together, 1e-5), PLD.epsilon(apart, 1e-5)
    assert right > 1.1 * wrong


def test_choices_of_one_batch_cost_more_than_those_of_two():
    assert PLD.epsilon({asked(0.05, 1.0, 1.0): 50}, 1e-5) > 1.1 * PLD.epsilon({asked(0.05, 1.0): 100}, 1e-5)


def test_without_sampling_it_does_not_matter_on_which_batch_a_mechanism_is():
    together, apart = {asked(1.0, 0.5, multiplier=3.0): 4}, {Event(1.0, 3.0): 4, asked(1.0, 0.5): 4}
    assert PLD.epsilon(together, 1e-5) == pytest.approx(PLD.epsilon(apart, 1e-5), rel=2e-3)


def test_a_choice_has_one_price_whatever_its_noise():
    """Randomised response dominates both; the bounded range helps where Rényi divergences add."""
    assert PLD.epsilon({Event(0.1, 1.0, (Choice(0.5, True),)): 10}, 1e-5) == PLD.epsilon(
        {asked(0.1, 0.5, multiplier=1.0): 10}, 1e-5
    )


def test_many_different_multipliers_beside_choices_stay_an_upper_bound():
    """Beyond EXACT events multipliers are interpolated, and events with choices never are."""
    rate, multipliers = 0.03, np.linspace(1.0, 2.0, EXACT + 12)
    mixed = {Event(rate, z): 2 for z in multipliers.tolist()} | {
        asked(rate, 0.7, multiplier=1.5): 3,
        asked(rate, 0.4): 5,
    }
    priced = PLD.epsilon(mixed, 1e-5)
    cells = make_cells(usable(mixed), 1e-5, exact=True)
    composition = Composition(choose_grid(cells, 1e-5))
    composition.add(cells)
    each = composition.curve().epsilon(1e-5)
    assert each * (1 - 1e-6) <= priced <= each * 1.003
    without = PLD.epsilon({event: n for event, n in mixed.items() if not event.choices}, 1e-5)
    assert priced > 1.01 * without


def test_a_running_price_knows_choices():
    plan = {asked(0.1, 0.5, multiplier=1.5): 5, Event(0.1, 2.0): 5}
    running = RunningPrice(plan, 1e-5)
    for event, count in plan.items():
        for _ in range(count):
            running.add(event)
    assert running.epsilon() == pytest.approx(PLD.epsilon(plan, 1e-5), rel=1e-6)
    alone = RunningPrice({asked(1.0, 0.5): 3}, 1e-5)
    alone.add(asked(1.0, 0.5))
    assert alone.epsilon() == pytest.approx(0.5, rel=0.01)


def test_total_variation_bounds_the_price_of_choices():
    for event in (asked(0.2, 0.5), asked(0.2, 0.5, 1.5), asked(1.0, 0.3, multiplier=1.0)):
        exact = event.sample_rate * base_delta(
            min(event.noise_multiplier, 1e6), [choice.epsilon for choice in event.choices], 0.0
        )
        assert exact <= total_variation({event: 1}) + 1e-9
        assert total_variation({event: 3}) == pytest.approx(3 * total_variation({event: 1}))
    assert total_variation({asked(0.2, 0.5): 1}) == pytest.approx(0.2 * math.tanh(0.25), rel=1e-5)
    assert PLD.epsilon({asked(1e-4, 0.5): 1}, 1e-4) == 0.0  # q·tanh(ε/2) is below δ
    assert PLD.epsilon({asked(1e-2, 0.5): 1}, 1e-4) > 0.0


@pytest.mark.parametrize(
    "price",
    [
        lambda events: PLD.epsilon(events, 1e-5, group=2),
        lambda events: PLD.delta(events, 0.5, group=2),
        lambda events: PLD.profile(events, group=2),
        lambda events: PLD.curve(events, 1e-5, group=2),
    ],
)
def test_groups_of_records_are_not_priced_for_choices(price):
    with pytest.raises(InvalidArgument, match="not for selections"):
        price({asked(0.1, 0.5): 3})


@pytest.mark.parametrize(
    "price",
    [
        AdvancedCompositionAccountant().epsilon,
        CentralLimitAccountant().epsilon,
        DisjointEpochsAccountant().epsilon,
        TruncatedConcentratedAccountant().epsilon,
        independent_price,
    ],
)
def test_accountants_of_gaussians_refuse_choices(price):
    with pytest.raises(InvalidArgument, match="selection"):
        price({Event(1.0, 2.0): 3, asked(1.0, 0.5): 1}, 1e-5)


@pytest.mark.parametrize("event", [asked(0.1, 501.0), asked(1.0, *[100.0] * 6), asked(0.1, 1e30, multiplier=2.0)])
def test_choices_that_protect_nobody_are_refused(event):
    with pytest.raises(InvalidArgument, match="protect nobody"):
        PLD.epsilon({event: 1}, 1e-5)


@pytest.mark.parametrize("epsilon", [40.0, 400.0])
def test_dear_choices_are_priced(epsilon):
    """Where e^−ε is below the rounding of 1."""
    assert epsilon - 1e-5 <= PLD.epsilon({asked(1.0, epsilon): 1}, 1e-5) <= epsilon * 1.0001


# --- tokens with choices ---------------------------------------------------------------------------------------------------


def test_a_token_with_choices_covers_what_it_dominates_and_nothing_else():
    token = Event(0.1, 2.0, (Choice(0.5), Choice(0.2, True)))
    for covered in (
        token,
        Event(0.1, 2.0),
        Event(0.05, 3.0, (Choice(0.4),)),
        Event(0.1, INFINITE, (Choice(0.5, True), Choice(0.2, True))),
        Event(0.1, 2.0, (Choice(0.2, True), Choice(0.5))),
    ):
        assert token.covers(covered)
    for dearer in (
        Event(0.1, 1.9, (Choice(0.5),)),
        Event(0.11, 2.0),
        Event(0.1, 2.0, (Choice(0.51),)),
        Event(0.1, 2.0, (Choice(0.3), Choice(0.3))),
        Event(0.1, 2.0, (Choice(0.2), Choice(0.2))),  # the second token is of bounded range, and cheaper
        Event(0.1, 2.0, (Choice(0.5), Choice(0.2, True), Choice(0.01, True))),
    ):
        assert not token.covers(dearer)
    assert not Event(0.1, 2.0).covers(Event(0.1, 9.0, (Choice(1e-3),)))


def test_tokens_with_choices_in_a_multiset():
    search, plain = asked(0.1, 0.5), Event(0.1, 2.0)
    both = asked(0.1, 0.5, multiplier=2.0)
    tokens = {search: 2, plain: 3, both: 1}
    rule = Multiset(tokens, budget(5.0))
    assert rule.epsilon(1e-5) == PLD.epsilon(tokens, 1e-5)
    charge(rule, plain)
    charge(rule, plain)
    charge(rule, plain)
    assert rule.left == {search: 2, both: 1}  # the dear token is kept while a plain one is left
    charge(rule, search)
    charge(rule, search)
    charge(rule, search)  # covered by the token for both
    with pytest.raises(BudgetExhausted):
        charge(rule, search)
    with pytest.raises(InvalidArgument, match="together they cost"):
        Multiset({asked(1.0, 1.0): 5}, budget(1.5))


@pytest.mark.parametrize("multiplier", [0.05, 0.03, 0.02, 0.01])
def test_a_step_on_all_records_with_hardly_any_noise_has_a_price(multiplier):
    """Its losses reach below −745, where e^e is no number any more. The price lies above that of the Gaussian alone, by at most 5 %."""
    alone = PLD.epsilon({Event(1.0, multiplier): 1}, 1e-5)
    assert alone < PLD.epsilon({asked(1.0, 0.5, multiplier=multiplier): 1}, 1e-5) < 1.05 * (alone + 0.5)


def test_losses_beyond_the_exponential_function_keep_their_mass():
    for multiplier in (0.1, 0.03, 0.01):
        loss = discretise(1.0, multiplier, (0.5,), 0.01, 1e-12)
        assert loss.added.sum() + loss.added_infinite == pytest.approx(1.0, abs=1e-9)
        assert loss.removed.sum() + loss.removed_infinite > 1 - 1e-9


def test_too_many_outcomes_on_one_batch_are_refused():
    """Each different selection doubles them; equal ones add one."""
    assert PLD.epsilon({asked(0.1, *[0.01] * 30): 1}, 1e-5) > 0
    with pytest.raises(InvalidArgument, match=r"16 on one batch.*65,536 outcomes"):
        PLD.epsilon({asked(0.1, *(0.01 * n for n in range(1, 17))): 1}, 1e-5)
