"""A recipe's whole schedule before any data exists: clip, noise, and what is spent when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from apportion.accounting.accountant import Accountant, PrivacyLossAccountant, RunningPrice, count_events
from apportion.accounting.calibration import calibrate
from apportion.accounting.central_limit import CentralLimitAccountant
from apportion.accounting.comparisons import compare_accountants
from apportion.budget import Budget
from apportion.errors import InvalidArgument
from apportion.plan import Plan, make_plan
from apportion.report.figure_page import write_page
from apportion.request import Event
from apportion.sampling import Sampling
from apportion.strategies.context import Context
from apportion.strategies.recipes import Recipe

CALIBRATIONS: dict[str, type[Accountant]] = {"pld": PrivacyLossAccountant, "clt": CentralLimitAccountant}
POINTS = 40
"""At how many steps the budget spent so far is priced for a drawing."""


def plan_recipe(recipe: Recipe, budget: Budget, sampling: Sampling, calibration: str = "pld") -> dict[str, Any]:
    """The plan of a recipe as data: see `apportion plan --json`.

    Args:
        calibration: "pld" solves the noise from the true ε; "clt" from the central limit theorem, as Du et al. do, which is *not an
            upper bound*: the plan then says what it really costs.
    """
    if recipe.clip is None or recipe.noise is None:
        raise InvalidArgument("recipe", recipe.name, "it has no privacy to plan", "Choose a private recipe")
    if calibration == "clt":
        plan = plan_by_limit_theorem(recipe, budget, sampling)
    else:
        plan = make_plan(budget, sampling, recipe.clip, recipe.noise, PrivacyLossAccountant())
    claims = compare_accountants(count_events(plan.tokens), budget.delta)
    return {
        "recipe": recipe.name,
        "epsilon": plan.epsilon,
        "target_epsilon": budget.epsilon,
        "delta": budget.delta,
        "unit": budget.unit.name,
        "calibrated_by": calibration if recipe.noise.multiplier is None else "given multiplier",
        "steps": plan.steps,
        "sample_rate": sampling.sample_rate,
        "expected_batch_size": sampling.expected_batch_size,
        "noise_multiplier": list(plan.multipliers),
        "clip": _thresholds(plan),
        "spent": _spending(plan.tokens, budget.delta),
        "claims": {claim.name: claim.epsilon for claim in claims},
        "not_upper_bounds": [claim.name for claim in claims if not claim.upper_bound],
    }


def plan_by_limit_theorem(recipe: Recipe, budget: Budget, sampling: Sampling) -> Plan:
    """A plan whose noise the central limit theorem solves from `budget`, at its true price, which exceeds that budget."""
    assert recipe.clip is not None
    noise: Any = recipe.noise
    contexts = [Context(step, sampling.steps, sampling.sample_rate) for step in range(1, sampling.steps + 1)]
    scale = calibrate(
        CentralLimitAccountant(),
        [noise.relative(context) for context in contexts],
        sample_rate=sampling.sample_rate,
        epsilon=budget.epsilon,
        delta=budget.delta,
    )
    unlimited = replace(budget, epsilon=1e6)  # the point is to see by how much the true price exceeds the claim
    return make_plan(unlimited, sampling, recipe.clip, replace(noise, multiplier=scale), PrivacyLossAccountant())


def _thresholds(plan: Plan) -> list[float]:
    """The first threshold of each step, as far as it is known before anything was released."""
    shapes = {"parameter": (1,)}  # the model is not known here
    state = plan.clip.init(plan.context(1, shapes))
    return [plan.request(plan.context(step, shapes), state).sums[0].threshold for step in range(1, plan.steps + 1)]


def _spending(tokens: Sequence[Event], delta: float) -> list[tuple[int, float]]:
    """(step, ε spent so far) at evenly spaced steps."""
    running = RunningPrice(count_events(tokens), delta)
    every = max(1, len(tokens) // POINTS)
    spent = []
    for step, token in enumerate(tokens, start=1):
        running.add(token)
        if step % every == 0 or step in (1, len(tokens)):
            spent.append((step, running.epsilon()))
    return spent


def draw_plans(plans: Sequence[dict[str, Any]], out: Path) -> Path:
    """Clip, noise and budget of all plans over the steps, on one page that needs no network."""
    from plotly.subplots import make_subplots

    titles = ("ε spent", "noise multiplier", "clip threshold")
    figure = make_subplots(rows=1, cols=3, subplot_titles=titles)
    palette = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
    for number, plan in enumerate(plans):
        steps = list(range(1, plan["steps"] + 1))
        thin = max(1, len(steps) // 1000)
        style = {
            "name": plan["recipe"],
            "legendgroup": plan["recipe"],
            "line": {"color": palette[number % len(palette)]},
        }
        spent = list(zip(*plan["spent"], strict=True))
        figure.add_scatter(x=spent[0], y=spent[1], row=1, col=1, **style)
        figure.add_scatter(x=steps[::thin], y=plan["noise_multiplier"][::thin], row=1, col=2, showlegend=False, **style)
        figure.add_scatter(x=steps[::thin], y=plan["clip"][::thin], row=1, col=3, showlegend=False, **style)
    figure.update_xaxes(title="step")
    figure.update_yaxes(rangemode="tozero")
    first = plans[0]
    facts = f"ε = {first['target_epsilon']:g}, δ = {first['delta']:g}, q = {first['sample_rate']:.4g}, {first['steps']:,} steps"
    figure.update_layout(
        title=f"Plans for {facts}",
        template="plotly_white",
        hovermode="x unified",
    )
    return write_page(figure, out, "html")
