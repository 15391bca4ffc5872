"""Which filter covers a recipe that is not fixed in advance, and how much noise its reference run needs. Imports no torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from apportion.accounting.accountant import PRICED, count_events
from apportion.accounting.renyi import ORDERS, QUICK_ORDERS
from apportion.accounting.rules import ConcentratedFilter, GaussianFilter, IndividualFilters, RenyiFilter, Rule, fits
from apportion.budget import Budget
from apportion.errors import InvalidArgument
from apportion.event import Event
from apportion.strategies.people import IndividualFilter
from apportion.strategies.recipes import Recipe
from apportion.strategies.roles import AskingUpdate

_SPARSE, _NEAR = 8, 8  # of the Rényi orders every eighth, and how many on either side of the best one
_COARSE, _FINE = 1e-2, 1e-4  # how closely a few orders bound the scale, and how closely it is found


def choose_filter(recipe: Recipe, budget: Budget, events: Sequence[Event]) -> Rule:
    """The tightest filter that covers a recipe: without sampling sums of μ² or ρ, otherwise Rényi orders around a reference run."""
    return _filter_around(recipe, budget, reference_run(recipe, count_events(events)), len(events))


def _filter_around(
    recipe: Recipe, budget: Budget, reference: Mapping[Event, float], steps: int, among: tuple[float, ...] = ORDERS
) -> Rule:
    unsampled = all(event.sample_rate == 1 for event in reference)
    if isinstance(recipe.people, IndividualFilter):
        each = GaussianFilter(budget) if unsampled else RenyiFilter.around(budget, reference, steps, among)
        return IndividualFilters(budget, steps, each)
    if unsampled:
        kind = ConcentratedFilter if isinstance(recipe.update, AskingUpdate) else GaussianFilter
        return kind(budget, steps)
    return RenyiFilter.around(budget, reference, steps, among)


def reference_run(recipe: Recipe, counts: Mapping[Event, int]) -> Mapping[Event, float]:
    """The events of the run for which a filter is made."""
    if isinstance(recipe.people, IndividualFilter):  # the worst case, which is shorter than the run
        return {event: count / recipe.people.stretch for event, count in counts.items()}
    return recipe.update.reference(counts) if isinstance(recipe.update, AskingUpdate) else counts


def smallest_scale(recipe: Recipe, budget: Budget, rate: float, shape: Sequence[float]) -> float:
    """The smallest scale at which the reference run fits into its filter.

    Args:
        rate: with which a unit of privacy is in a batch.
        shape: the multipliers in units of their scale.
    """
    relative = Counter(shape)

    def chosen(scale: float, among: tuple[float, ...] = ORDERS) -> tuple[Rule, Mapping[Event, float]]:
        reference = reference_run(recipe, {Event(rate, scale * one): count for one, count in relative.items()})
        return _filter_around(recipe, budget, reference, len(shape), among), reference

    def affordable(scale: float, among: tuple[float, ...] = ORDERS) -> bool:
        return fits(*chosen(scale, among))

    # Most orders are far from the best one and take most of the time: a few find its neighbourhood, and that the scale.
    few = tuple(sorted({*ORDERS[::_SPARSE], *QUICK_ORDERS}))
    bracket = _halve(lambda scale: affordable(scale, few), PRICED, _COARSE)
    rule, _ = chosen(bracket[1])
    rule = rule.each if isinstance(rule, IndividualFilters) else rule
    near = _orders_near(rule.best) if isinstance(rule, RenyiFilter) else ORDERS
    bracket = _enclose(lambda scale: affordable(scale, near), bracket)
    _, high = _halve(lambda scale: affordable(scale, near), bracket, _FINE)
    if not affordable(high):  # the best order was not among them
        _, high = _halve(affordable, PRICED, _FINE)
    if not affordable(high):
        raise InvalidArgument(
            "budget.epsilon", budget.epsilon, "no multiplier is large enough for it under a filter", "Use fewer steps"
        )
    return high


def _halve(affordable: Callable[[float], bool], bracket: tuple[float, float], precision: float) -> tuple[float, float]:
    """A scale that is too small and the smallest one that is affordable, up to `precision`; the ends are taken for that."""
    low, high = bracket
    while high > low * (1 + precision):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if affordable(middle) else (middle, high)
    return low, high


def _enclose(affordable: Callable[[float], bool], bracket: tuple[float, float]) -> tuple[float, float]:
    """A bracket near this one, within the priced range, whose upper end is affordable and whose lower end is not."""
    low, high = bracket
    ratio = high / low
    while high < PRICED[1] and not affordable(high):
        low, high, ratio = high, min(high * ratio, PRICED[1]), ratio**2
    while low > PRICED[0] and affordable(low):
        low, high, ratio = max(low / ratio, PRICED[0]), low, ratio**2
    return low, high


def _orders_near(best: float) -> tuple[float, ...]:
    """The Rényi orders beside it."""
    place = ORDERS.index(best)
    return ORDERS[max(0, place - _NEAR) : place + _NEAR + 1]
