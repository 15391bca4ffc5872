"""Individual budgets by scaling: who allows more may move the sum further."""

from __future__ import annotations

from dataclasses import dataclass

from apportion.accounting.group_calibration import GroupProblem, GroupSolution, solve_clips
from apportion.validate import Checked, checked, one_of


@dataclass(frozen=True)
class Scale(Checked):
    """Members of group p are clipped to s_p·C_t; rate and noise are the same for all.

    For data sets that differ in a member of group p a step is the subsampled Gaussian (q, z_t/s_p), whatever C_t is, so any clip may be
    combined with it. With z^p_t, the multipliers with which group p alone would spend ε_p, z = (Σ_p r_p/z^p)⁻¹ and s_p = z/z^p. Then
    Σ_p r_p·s_p = 1: thresholds are C on average. Counts and norms that a clip asks for are weighted by s_p, and so cost s_p too.

    The printed constraint asks for that average, which only the harmonic mean has. The published code takes z = Σ_p r_p·z^p instead
    (`mean="arithmetic"`); it spends the same budgets, with all thresholds a little larger.

    Source: Boenisch et al. 2023, Have it your way: individualized privacy assignment for DP-SGD (IDP-SGD, Scale).
    Guarantee: ε_p for every member of group p, by the composition of the group's own events.

    Examples:
        >>> import apportion as ap
        >>> budget = ap.Budget.of_groups({"strict": (1.0, 0.5), "loose": (3.0, 0.5)}, delta=1e-5, unit=ap.Record())
        >>> recipe = ap.Recipe(clip=ap.clip.Fixed(1.0), people=ap.people.Scale())
        >>> plan = ap.plan(recipe, budget=budget, population=60_000, batch_size=600, steps=1000)
        >>> [round(one.clip, 2) for one in plan.factors]
        [0.73, 1.27]
    """

    prefix = "people"
    mean: str = checked("harmonic", one_of("harmonic", "arithmetic"), "thresholds are averaged in one of two ways")

    def solve(self, problem: GroupProblem) -> GroupSolution:
        """Thresholds in inverse proportion to the noise that each group needs."""
        return solve_clips(problem, self.mean)
