"""Individual budgets by sampling: who allows more is drawn more often."""

from __future__ import annotations

from dataclasses import dataclass

from apportion.accounting.group_calibration import GroupProblem, GroupSolution, solve_rates


@dataclass(frozen=True)
class Sample:
    """A member of group p joins a batch with probability q_p; noise and threshold are the same for all.

    For data sets that differ in a member of group p a step is the subsampled Gaussian (q_p, z_t). q_p is the largest rate that ε_p affords,
    and the scale of the noise is the one at which the average rate Σ_p r_p·q_p is the declared q, so a batch is as large as without groups.
    The published search stops at q_p = 0.1 and silently keeps old rates for looser budgets; here every rate up to 1 is found, and an ε that
    none reaches is refused.

    Source: Boenisch et al. 2023, Have it your way: individualized privacy assignment for DP-SGD (IDP-SGD, Sample).
    Guarantee: ε_p for every member of group p, by the composition of the group's own events.

    Examples:
        >>> import apportion as ap
        >>> budget = ap.Budget.of_groups({"strict": (1.0, 0.5), "loose": (3.0, 0.5)}, delta=1e-5, unit=ap.Record())
        >>> recipe = ap.Recipe(clip=ap.clip.Fixed(1.0), people=ap.people.Sample())
        >>> plan = ap.plan(recipe, budget=budget, population=60_000, batch_size=600, steps=1000)
        >>> [round(plan.sampling.sample_rate * one.rate, 4) for one in plan.factors]
        [0.0053, 0.0147]
    """

    def solve(self, problem: GroupProblem) -> GroupSolution:
        """Rates whose average is the declared one."""
        return solve_rates(problem)
