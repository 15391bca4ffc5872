"""What each person really pays: a filter that uses it, and an estimate that only reports it."""

from __future__ import annotations

from dataclasses import dataclass

from apportion.accounting.group_calibration import GroupProblem, GroupSolution
from apportion.errors import InvalidArgument
from apportion.validate import Checked, at_least, checked, in_open_unit, whole

LEVELS = 24
"""Different bounds that a person may have, from the floor to the threshold."""


class _Individual(Checked):
    """What is common to both: norms of all records are computed at public steps, and rounded up on a grid that holds the threshold."""

    prefix = "people"

    def solve(self, problem: GroupProblem) -> GroupSolution:
        """Groups have budgets of their own already."""
        raise InvalidArgument(
            "people",
            type(self).__name__,
            "it keeps an account for each person under one budget, and the budget has groups",
            "Use apportion.people.Scale or Sample, or one budget for everybody",
        )


@dataclass(frozen=True)
class IndividualFilter(_Individual):
    """Train longer: whoever has spent the budget is left out, everybody else goes on.

    At public refresh steps the norm of every record's gradient is computed, and s_i = clamp(β·‖g_i‖/C, floor, 1), rounded up to a grid, is
    held until the next. A record is clipped to s_i·C and charged (q, z/s_i) at every step, drawn or not, by a filter of its own; a
    step that does not fit is taken without it. The noise is that of a run of T/stretch steps in which everybody pays the worst case, and T
    steps are taken, a length that is declared in advance: the run never ends because nobody is left.

    It pays where gradients differ: records that are learned early have short gradients and pay little. Without sampling (q = 1) the filters
    add up μ² and are exact; with it they are Rényi filters, which cost more than a fixed plan does: 8 to 36 % at z above 1, and far more
    below. Every refresh is a pass over all records, one by one. With gradients of equal length it only costs: when everybody has spent
    the budget, the rest of the run is noise.

    Args:
        stretch: how many times longer the run is than its noise affords in the worst case.
        refresh: steps between two passes over all records.
        margin: β ≥ 1. Norms grow and shrink between refreshes; what exceeds the bound is clipped.
        floor: the smallest s_i.

    Source: Feldman and Zrnic 2021, Individual privacy accounting via a Rényi filter; bounds that are held between refreshes are ours.
    Guarantee: (ε, δ) for every record, whatever the others are. Who was left out, how many, and what anybody has spent is never released.

    Examples:
        >>> import apportion as ap
        >>> recipe = ap.Recipe(clip=ap.clip.Fixed(1.0), people=ap.people.IndividualFilter(stretch=2.0))
        >>> budget = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())
        >>> plan = ap.plan(recipe, budget=budget, population=60_000, batch_size=600, steps=1000)
        >>> f"{plan.steps} steps, z = {plan.multipliers[0]:.2f}, ε = {plan.epsilon:g}"
        '1000 steps, z = 0.80, ε = 3'
    """

    stretch: float = checked(2.0, at_least(1), "a run cannot be shorter than what everybody affords")
    refresh: int = checked(20, whole, "it is a number of steps")
    margin: float = checked(1.2, at_least(1), "a bound below the norm would clip at once")
    floor: float = checked(0.1, in_open_unit, "it is a part of the threshold")


@dataclass(frozen=True)
class IndividualEstimate(_Individual):
    """Report what each person would have paid in *this* run, an estimate. Nothing else changes.

    Z_i = min(‖g_i‖, C) is computed for all records every `refresh` steps and held in between; record i adds the Rényi curve of (q, z·C/Z_i)
    at every step, with Z_i rounded **up** on a grid that ends at C. The published code rounds to the nearest point of a grid without C, and
    so may report too little.

    The numbers are written to secret/individual.json, and labelled an estimate: between refreshes norms move, and nothing enforces them.
    The guarantee is that of the plan. They tell of single records: publish noisy summaries only, as of `apportion.statistics`.
    Clips that ask for statistics are refused: a record pays for those whatever the length of its gradient.

    Args:
        refresh: steps between two passes over all records.
        floor: the smallest part of C that is told apart.

    Source: Yu et al. 2023, Individual privacy accounting for differentially private stochastic gradient descent.

    Examples:
        >>> import apportion as ap
        >>> ap.people.IndividualEstimate(refresh=100)
        IndividualEstimate(refresh=100, floor=0.02)
    """

    refresh: int = checked(50, whole, "it is a number of steps")
    floor: float = checked(0.02, in_open_unit, "it is a part of the threshold")
