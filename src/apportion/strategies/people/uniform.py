"""Everybody alike, whatever was asked for."""

from __future__ import annotations

from dataclasses import dataclass

from apportion.accounting.group_calibration import GroupProblem, GroupSolution
from apportion.event import GroupFactors


@dataclass(frozen=True)
class Uniform:
    """All groups get the smallest ε that one of them asked for: one rate, one threshold.

    It is what a library without individual budgets has to do, and the baseline that `Sample` and `Scale` are compared with.

    Guarantee: min_p ε_p for everybody.

    Examples:
        >>> import apportion as ap
        >>> budget = ap.Budget.of_groups({"strict": (1.0, 0.5), "loose": (3.0, 0.5)}, delta=1e-5, unit=ap.Record())
        >>> recipe = ap.Recipe(clip=ap.clip.Fixed(1.0), people=ap.people.Uniform())
        >>> plan = ap.plan(recipe, budget=budget, population=60_000, batch_size=600, steps=1000)
        >>> [round(plan.group_epsilon(name), 1) for name in ("strict", "loose")]
        [1.0, 1.0]
    """

    def solve(self, problem: GroupProblem) -> GroupSolution:
        """The noise for the smallest ε; all factors are 1."""
        factors = tuple(GroupFactors(share=group.share) for group in problem.groups)
        return GroupSolution(problem.scale_for(min(group.epsilon for group in problem.groups)), factors)
