"""Accountants that need more noise than ours for the same ε, to run what was published with them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from apportion.accounting.accountant import Accountant, count_events
from apportion.accounting.concentrated import DisjointEpochsAccountant, TruncatedConcentratedAccountant
from apportion.budget import Budget
from apportion.errors import InvalidArgument
from apportion.event import Event
from apportion.planning import Plan, plan_steps
from apportion.sampling import Sampling
from apportion.strategies.recipes import Recipe

LEAST_OF_TCDP = math.sqrt(5) * (1 + 1e-9)
"""The smallest multiplier z that the theorem of tCDP covers: 1/(2z²) ≤ 0.1."""
_SMALL = 0.01


class CoveringTruncatedAccountant(TruncatedConcentratedAccountant):
    """tCDP, where steps with too little noise for its theorem cost infinitely much, so that a plan gets enough of it."""

    def epsilon(self, events: Mapping[Event, int], delta: float) -> float:
        try:
            return super().epsilon(events, delta)
        except InvalidArgument as refusal:
            if refusal.argument != "noise_multiplier":
                raise
            return math.inf


OTHERS: Mapping[str, Accountant] = {"zcdp": DisjointEpochsAccountant(), "tcdp": CoveringTruncatedAccountant()}
"""By the name that a recipe's `calibrated_by` gives them."""


def plan_loosely(name: str, recipe: Recipe, budget: Budget, sampling: Sampling) -> Plan:
    """A plan whose noise `name` solves from the budget, at its true price, which is lower.

    Where even the least noise that tCDP covers costs less than the budget by its own count, the plan has that noise.
    """
    try:
        return plan_steps(recipe, budget, sampling, accountant=OTHERS[name])
    except InvalidArgument as refusal:
        if name != "tcdp" or refusal.argument != "epsilon":
            raise
        small = plan_steps(recipe, replace(budget, epsilon=_SMALL * budget.epsilon), sampling, accountant=OTHERS[name])
        factor = LEAST_OF_TCDP / min(small.multipliers)
        plan = replace(small, budget=budget, multipliers=tuple(factor * one for one in small.multipliers))
        events = count_events(Event(sampling.sample_rate, one) for one in plan.multipliers)
        if OTHERS[name].epsilon(events, budget.delta) > budget.epsilon:
            raise
        return plan
