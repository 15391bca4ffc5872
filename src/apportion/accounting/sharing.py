"""How several runs share one limit: what each of equal ones may spend, and which rule over runs takes less of it.

The Gaussian rule adds up μ², so k equal runs of many steps get about ε/√k each; the sum rule gives them ε/k. But the loss of a run of few
steps with a small sampling rate is far from Gaussian, and bounding it by a Gaussian wastes a part of the limit. For one or two such
runs the sum rule is cheaper.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from apportion import validate
from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.accounting.gaussian import gaussian_epsilon
from apportion.accounting.run_filter import FAILURE_PART, Cost, GaussianRuns, SumOfRuns, gaussian_cost
from apportion.budget import Budget
from apportion.errors import InvalidArgument
from apportion.event import Event

if TYPE_CHECKING:
    from apportion.accounting.ledger import Ledger

WASTE = 0.05
"""A rule is called wasteful if another one would take less by more than this part."""
_CLOSE = 0.005
_ROUNDS = 20
Events = Mapping[Event, int]


def equal_runs(events: Callable[[float], Events], limit: Budget, runs: int) -> float:
    """The largest ε, at the limit's δ, of each of k equal runs that the Gaussian rule admits; within 0.5 %, and never too large.

    Each run may cost M²/k of the capacity M². The last one has the smallest part of D left, d = D·(1 − 1/20)^(k−1)/20, and so the highest
    price; all are taken to cost that much.

    Args:
        events: the plan of a run that promises an ε at the limit's δ.
        limit: (ε, δ) of all runs together.
        runs: k.

    Source:
        the Gaussian rule of `run_filter.py`.

    Guarantee:
        a ledger with this limit and the Gaussian rule admits k runs with `events(ε)`, one after the other.

    Examples:
        Five runs on all records, of ε = 2 together.

        >>> from apportion import Budget, Event, Record
        >>> from apportion.accounting.gaussian import gaussian_mu
        >>> from apportion.accounting.sharing import equal_runs
        >>> limit = Budget(epsilon=2.0, delta=1e-6, unit=Record())
        >>> each = equal_runs(lambda epsilon: {Event(1.0, 1 / gaussian_mu(epsilon, 1e-6)): 1}, limit, 5)
        >>> 0.83 < each < 0.84
        True
    """
    validate.whole("runs", runs, "it is a number of runs", "Try 5")
    capacity = GaussianRuns(limit).capacity()
    part = capacity.main / runs
    failure = -math.expm1(-capacity.failure * (1 - FAILURE_PART) ** (runs - 1) * FAILURE_PART)
    epsilon = min(gaussian_epsilon(math.sqrt(part), limit.delta), limit.epsilon)
    low, high = 0.0, math.inf
    for _ in range(_ROUNDS):
        cost = gaussian_cost(events(epsilon), failure).main
        low, high = (epsilon, high) if cost <= part else (low, epsilon)
        if low and (high - low < _CLOSE * high or low >= limit.epsilon):
            break
        # ε grows about as μ does. Aim a little below, so that the next guess fits; halve the rest where that leads nowhere new.
        guess = epsilon * math.sqrt(part / cost) * (1 - _CLOSE / 2) if cost else limit.epsilon
        if not low * (1 + _CLOSE / 2) < guess < high:
            guess = (low + min(high, low * (1 + 4 * _CLOSE))) / 2
        epsilon = min(guess, limit.epsilon)
    return low


def price_together(plans: Iterable[Events], limit: Budget) -> dict[str, float]:
    """What these runs take of the limit, as an ε at its δ: under each rule over runs. The order plays no part worth showing.

    Under the sum rule each of n runs is priced at δ/n, which a person who knew the rule would give it.

    Examples:
        Two runs of three steps each: a Gaussian bounds them badly.

        >>> from apportion import Budget, Event, Record
        >>> from apportion.accounting.sharing import price_together
        >>> taken = price_together([{Event(0.01, 0.8): 3}] * 2, Budget(epsilon=3.0, delta=1e-6, unit=Record()))
        >>> taken["sum"] < taken["gaussian"]
        True
    """
    counted = Counter(tuple(plan.items()) for plan in plans)
    gaussian, total = GaussianRuns(limit), 0.0
    failure = -math.expm1(-gaussian.capacity().failure * FAILURE_PART)
    spent = Cost()
    for items, times in counted.items():
        total += times * PrivacyLossAccountant().epsilon(dict(items), limit.delta / counted.total())
        one = gaussian_cost(dict(items), failure)
        spent += Cost(times * one.main, min(times, 1 / FAILURE_PART) * one.failure)  # all of them use at most D
    return {GaussianRuns.name: gaussian.epsilon(spent), SumOfRuns.name: total}


def cheaper_rule(ledger: Ledger, further: Events | None = None) -> tuple[str, Mapping[str, float]] | None:
    """The rule over runs that would have taken less of the limit, with what each takes; `None` if the declared one is as good.

    Args:
        ledger: of a data set.
        further: a run that is to be added to those that were admitted.
    """
    runs, rule = ledger.runs(), ledger.rule
    plans: list[Events] = [Counter(run.plan) for run in runs] + ([] if further is None else [further])
    if rule is None or not plans or not all(plans):  # of searches and filters, the events are not known in advance
        return None
    try:
        taken = price_together(plans, rule.limit)
    except InvalidArgument:  # an event that one of the rules has no price for
        return None
    best = min(taken, key=lambda name: taken[name])
    return (best, taken) if taken[best] < (1 - WASTE) * taken[rule.name] else None


def advise_rule(ledger: Ledger, further: Events | None = None) -> str | None:
    """`cheaper_rule` in words."""
    found = cheaper_rule(ledger, further)
    if found is None or ledger.rule is None:
        return None
    best, taken = found
    why = (
        "a Gaussian bounds runs of few steps badly"
        if best == SumOfRuns.name
        else "μ² of several runs adds up to less than their ε do"
    )
    return (
        f"The rule {ledger.rule.name} is wasteful for these runs: it takes ε = {taken[ledger.rule.name]:.4g} of the limit, and the rule "
        f"{best} would take {taken[best]:.4g} ({why}). A declared rule stays: declare the ledger of the next data set with --rule {best}. "
        "A second ledger for the same data would forget what was spent."
    )
