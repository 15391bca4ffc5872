"""`apportion plan`: what a recipe will do and cost, before any data is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apportion import validate
from apportion.cli import options
from apportion.cli.options import option
from apportion.cli.output import screen, writable_folder
from apportion.compare.defaults import with_benchmark_budget, with_features, with_training_defaults
from apportion.errors import InvalidArgument

if TYPE_CHECKING:
    from rich.console import Console

    from apportion.planning import Plan

_BARS = " ▁▂▃▄▅▆▇█"
_WIDTH = 48


class Options(options.Columns, options.Featured, options.Planned):
    """What is planned."""

    recipe: list[str] = option("Repeatable, to lay plans over each other.", options.DEFAULT_RECIPE_SHOWN)
    data: options.Data


@options.declared_in(Options)
def plan(
    spare: Annotated[
        int | None,
        option(
            "Steps that can be taken again after a crash; they are paid for.",
            "with --out a hundredth of the run, and 50 more from 5,000 steps on; otherwise 0",
        ),
    ] = None,
    out: Annotated[
        Path | None, option("Write the plan to a new file, for `apportion train --plan` and for review (JSON).")
    ] = None,
    calibrate: Annotated[
        str, option("pld: the true ε. clt: as Du et al., not an upper bound, to reproduce their cells.")
    ] = "pld",
    claims: Annotated[bool, option("Also what other accountants would claim for the same steps.")] = False,
    html: Annotated[Path | None, option("Also draw the plans on a page.")] = None,
    as_json: options.Json = False,
    **said: Any,
) -> None:
    """Solve the noise from the budget and show clip, noise and ε spent over the steps.

    No data is needed or read; --data only fills in the published size of a benchmark, or the defaults of a table. --schema and --target,
    of a table, are checked as `train` does.

    Example: apportion plan --recipe abadi --recipe du-growing --epsilon 1.2 --delta 1e-6 --unit record --population 60000
    --batch-size 256 --steps 5000

    Example: apportion plan --data digits --epsilon 3 --out plan.json; apportion train --data digits --plan plan.json
    """
    from apportion.cli.compare_command import choose_recipes
    from apportion.compare.experiment import experiment
    from apportion.compare.table_subject import require_table_choice
    from apportion.reporting.plan_page import CALIBRATIONS, draw_plans, plan_facts, plan_recipe

    validate.known("calibrate", calibrate, CALIBRATIONS)
    settings, recipes = options.parse_settings(said.pop("set", None)), said.pop("recipe", [options.DEFAULT_RECIPE])
    if out is not None:
        _require_one_new_plan(out, recipes, calibrate)
    said = options.with_table(said)
    if "table" in said:
        require_table_choice(said.get("data", "your data"), said["table"])
    values = {"data": "your data", "recipe": choose_recipes(None, recipes, settings)} | said
    wanted = experiment(with_benchmark_budget(with_training_defaults(with_features(values))))
    wanted.check()
    budget, sampling = wanted.budget(), wanted.sampling()
    planned = []
    for chosen in (choice.recipe() for choice in wanted.recipe):
        spares = options.default_spare(chosen, sampling.steps if out is not None else 0) if spare is None else spare
        made = plan_recipe(chosen, budget, sampling, calibrate, spares, wanted.channel_norm())
        planned.append(made.with_usable_count() if wanted.count_usable else made)
    if out is not None:
        _write(planned[0], out)
    plans = [
        plan_facts(one, target_epsilon=budget.epsilon, calibration=calibrate, with_claims=claims) for one in planned
    ]
    if html is not None:
        draw_plans(plans, html)
    if as_json:
        typer.echo(json.dumps(plans[0] if len(plans) == 1 else plans))
        return
    for one, facts in zip(planned, plans, strict=True):
        _show(facts, one.describe_usable_count())
    if html is not None:
        typer.echo(f"Drawn in {html}")
    if out is not None:
        typer.echo(f"Written to {out}: execute it with `apportion train --data … --plan {out}`")


def _require_one_new_plan(path: Path, recipes: list[str], calibrate: str) -> None:
    """Before anything is solved: what is written can be executed, and replaces no plan that somebody has reviewed."""
    if calibrate != "pld":
        reason = f"noise from {calibrate} costs more than the ε that was asked for"
        raise InvalidArgument("out", str(path), reason, "Use --calibrate pld")
    if len(recipes) > 1:
        raise InvalidArgument("out", str(path), f"{len(recipes)} recipes were given", "Pass one recipe")
    if path.exists():
        raise InvalidArgument("out", str(path), "it exists already", "Choose a new file, or remove this one")


def _write(plan: Plan, path: Path) -> None:
    from apportion.training.checkpoint import replace_file

    writable_folder(path.parent)
    replace_file(path, plan.to_json().encode())


def _show(plan: dict[str, Any], counted: str) -> None:
    from apportion.planning import describe_norm

    console = screen()
    console.print(
        f"[bold]{plan['recipe']}[/bold]  ε = {plan['epsilon']:.4f} (asked for {plan['target_epsilon']:g}), δ = {plan['delta']:g}, "
        f"{plan['steps']:,} steps with q = {plan['sample_rate']:.4g}",
        soft_wrap=True,
    )
    console.print(f"  {counted}", soft_wrap=True)
    if plan["course"] is not None:
        _show_course(plan, console)
        return
    for group in plan.get("groups", ()):
        console.print(
            f"  {group['name']:<8} {sparkline([price for _, price in group['spent']])}  ε = {group['epsilon']:.4f} of {group['budget']:g}, "
            f"{100 * group['share']:g} % of the people, q = {group['sample_rate']:.4g}, clipped to {group['clip_scale']:.4g}·C",
            soft_wrap=True,
        )
    spent = [price for _, price in plan["spent"]]
    for name, series in (("ε spent", spent), ("noise", plan["noise_multiplier"]), ("clip", plan["clip"])):
        console.print(f"  {name:<8} {sparkline(series)}  {series[0]:.4g} → {series[-1]:.4g}")
    if "norm" in plan:
        console.print(f"  {describe_norm(plan['norm'])}", soft_wrap=True)
    if "claims" in plan:
        claims = ", ".join(
            f"{name} {'refuses' if value is None else f'{value:.4g}'}" for name, value in plan["claims"].items()
        )
        console.print(f"  [dim]claims: {claims}[/dim]", soft_wrap=True)
    console.print()


def _show_course(plan: dict[str, Any], console: Console) -> None:
    """What is known in advance of prices that follow released values: the promise; and what may happen, on made-up answers."""
    course = plan["course"]
    console.print(f"  [dim]rule: {plan['rule']}; ε is promised whatever is spent[/dim]", soft_wrap=True)
    console.print(f"  clip         {sparkline(plan['clip'])}  {plan['clip'][0]:.4g} → {plan['clip'][-1]:.4g}")
    console.print(f"  A typical course, on made-up answers: {len(course):,} draws of at most {plan['steps']:,}")
    for question in dict.fromkeys(step["question"] for step in course):
        key, name = ("noise_multiplier", "z") if question == "gradient" else ("epsilon", "ε₀")
        series = [step[key] for step in course if step["question"] == question]
        ends = f"{name} {series[0]:.4g} → {series[-1]:.4g}, {len(series):,} draws"
        console.print(f"  {question:<12} {sparkline(series)}  {ends}", soft_wrap=True)
    console.print()


def sparkline(series: list[float]) -> str:
    """The series as a line of bars from 0 to its largest value."""
    picked = [series[index * (len(series) - 1) // (_WIDTH - 1)] for index in range(_WIDTH)]
    top = max(picked) or 1.0
    return "".join(_BARS[round(value / top * (len(_BARS) - 1))] for value in picked)
