"""A recipe's whole schedule before any data exists: clip, noise, and what is spent when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from apportion.accounting.accountant import Accountant, PrivacyLossAccountant, count_events
from apportion.accounting.central_limit import CentralLimitAccountant
from apportion.accounting.comparisons import compare_accountants
from apportion.budget import Budget
from apportion.channel_norm import ChannelNorm
from apportion.planning import Plan, plan_steps
from apportion.sampling import Sampling
from apportion.strategies.recipes import Recipe

CALIBRATIONS: dict[str, type[Accountant]] = {"pld": PrivacyLossAccountant, "clt": CentralLimitAccountant}


def plan_recipe(
    recipe: Recipe,
    budget: Budget,
    sampling: Sampling,
    calibration: str = "pld",
    spare: int = 0,
    norm: ChannelNorm | None = None,
) -> Plan:
    """The plan of a recipe.

    Args:
        calibration: "pld" solves the noise from the true ε; "clt" from the central limit theorem, as Du et al. do, which is *not an
            upper bound*: the plan then says what it really costs.
        spare: steps that can be taken again after a crash.
        norm: what is asked before the first step.
    """
    if calibration == "clt":
        return plan_by_limit_theorem(recipe, budget, sampling, norm)
    return plan_steps(recipe, budget, sampling, spare, norm=norm)


def plan_facts(
    plan: Plan, *, target_epsilon: float, calibration: str = "pld", with_claims: bool = False
) -> dict[str, Any]:
    """What `apportion plan --json` prints: the plan with its course, and if asked for what each accountant would claim for it."""
    rule = plan.rule()
    return {
        "recipe": plan.recipe.name,
        "epsilon": plan.epsilon,
        "target_epsilon": target_epsilon,
        "delta": plan.budget.delta,
        "unit": plan.budget.unit.name,
        "calibrated_by": calibration,
        "steps": plan.steps,
        "spare": plan.spare,
        "sample_rate": plan.sampling.sample_rate,
        "expected_batch_size": plan.expected_batch_size,
        "noise_multiplier": list(plan.multipliers),
        "clip": plan.thresholds(),
        "spent": plan.spending(),
        "usable": None if plan.usable is None else asdict(plan.usable),
        **({"groups": group_facts(plan)} if plan.factors else {}),
        **({} if plan.norm is None else {"norm": plan.norm_facts()}),
        "rule": rule.name,
        "course": _course(plan) if rule.adaptive else None,
        **(_claims(plan) if with_claims else {}),
    }


def _course(plan: Plan) -> list[dict[str, Any]]:
    from apportion.training.typical_course import typical_course  # needs torch

    return [asdict(step) for step in typical_course(plan)]


def _claims(plan: Plan) -> dict[str, Any]:
    """ε of the same events by every accountant; none under a filter, where events are not known in advance."""
    claims = [] if plan.filtered else compare_accountants(count_events(plan.declared), plan.budget.delta)
    return {
        "claims": {claim.name: claim.epsilon for claim in claims},
        "not_upper_bounds": [claim.name for claim in claims if not claim.upper_bound],
    }


def group_facts(plan: Plan) -> list[dict[str, Any]]:
    """What each group of the budget gets and pays, and how its budget is spent over the steps."""
    return [
        {
            "name": group.name,
            "share": group.share,
            "budget": group.epsilon,
            "epsilon": plan.group_epsilon(group.name),
            "sample_rate": plan.sampling.sample_rate * factors.rate,
            "clip_scale": factors.clip,
            "spent": plan.spending(group=number),
        }
        for number, (group, factors) in enumerate(zip(plan.budget.groups, plan.factors, strict=True))
    ]


def plan_by_limit_theorem(recipe: Recipe, budget: Budget, sampling: Sampling, norm: ChannelNorm | None = None) -> Plan:
    """A plan whose noise the central limit theorem solves from `budget`, at its true price, which exceeds that budget."""
    plan = plan_steps(recipe, budget, sampling, accountant=CentralLimitAccountant(), norm=norm)
    return replace(plan, budget=replace(budget, epsilon=plan.epsilon))


def draw_plans(plans: Sequence[dict[str, Any]], out: Path) -> Path:
    """Clip, noise and budget of all plans over the steps, on one page that needs no network."""
    from apportion.reporting.drawing import write_schedules

    first = plans[0]
    facts = f"ε = {first['target_epsilon']:g}, δ = {first['delta']:g}, q = {first['sample_rate']:.4g}, {first['steps']:,} steps"
    panels = {
        "ε spent": [(plan["recipe"], plan["spent"]) for plan in plans],
        "noise multiplier": [(plan["recipe"], _every_step(plan["noise_multiplier"])) for plan in plans],
        "clip threshold": [(plan["recipe"], _every_step(plan["clip"])) for plan in plans],
    }
    return write_schedules(f"Plans for {facts}", panels, out)


def _every_step(values: Sequence[float]) -> list[tuple[float, float]]:
    """(step, value), at most about a thousand of them."""
    return [(step + 1, values[step]) for step in range(0, len(values), max(1, len(values) // 1000))]
