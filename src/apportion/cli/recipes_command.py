"""`apportion recipes`: what there is, and what one of them does."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Column, Table

from apportion.cli import options
from apportion.cli.options import option
from apportion.cli.output import print_lines, screen
from apportion.cli.plan_command import sparkline
from apportion.errors import InvalidArgument

if TYPE_CHECKING:
    from apportion.strategies.recipes import Recipe


def recipes(
    name: Annotated[str | None, typer.Argument(help="A recipe to explain.", show_default="list all")] = None,
    settings: options.Settings = None,
    html: Annotated[Path | None, option("Also draw its schedule on a page.")] = None,
    as_json: options.Json = False,
) -> None:
    """List the recipes, or explain one: formula, hyper-parameters, price, source and schedule.

    With --json, the list has each schedule at its first, middle and last step, and a single recipe has it at all 1,000.

    Examples: apportion recipes; apportion recipes du-dynamic --set noise.ratio=4
    """
    from apportion.strategies.recipes import RECIPES, named

    if name is None:
        if settings or html is not None:
            raise InvalidArgument("name", None, "a setting or a drawing needs one recipe", "Name it first")
        everything = [named(one) for one in RECIPES]
        if as_json:
            typer.echo(json.dumps([facts(recipe) | _course(recipe, points=3) for recipe in everything]))
        else:
            _list(everything)
        return
    recipe = named(name).with_settings(options.parse_settings(settings))
    explained = facts(recipe) | _course(recipe)
    if html is not None:
        _draw(recipe, explained["schedule"], html)
    if as_json:
        typer.echo(json.dumps(explained))
        return
    _explain(recipe, explained, settings or [])
    if html is not None:
        typer.echo(f"Drawn in {html}")


def facts(recipe: Recipe) -> dict[str, Any]:
    """What is known about a recipe, as data."""
    from apportion.strategies.citations import citation_keys
    from apportion.strategies.recipes import PRICES
    from apportion.strategies.recipes.explanation import describe_roles, list_parameters

    return {
        "recipe": recipe.name,
        "summary": recipe.summary,
        "adapts": list(recipe.adapts),
        "needs": recipe.needs,
        "price": PRICES[recipe.price],
        "citations": list(citation_keys(recipe)),
        "parts": [asdict(part) for part in describe_roles(recipe)],
        "parameters": [asdict(parameter) for parameter in list_parameters(recipe)],
    }


def _course(recipe: Recipe, points: int | None = None) -> dict[str, Any]:
    """The schedule of a recipe, at so many evenly spaced steps; at all of them by default. `at` says which, from 1."""
    from apportion.strategies.recipes.explanation import EXAMPLE_RATE, EXAMPLE_STEPS, example_schedule

    chosen: Sequence[int] = range(EXAMPLE_STEPS)
    if points is not None:
        chosen = [index * (EXAMPLE_STEPS - 1) // (points - 1) for index in range(points)]
    series = {
        name: None if values is None else [values[index] for index in chosen]
        for name, values in example_schedule(recipe).items()
    }
    at = [index + 1 for index in chosen]
    return {"schedule": {"steps": EXAMPLE_STEPS, "sample_rate": EXAMPLE_RATE, "at": at, **series}}


def _list(everything: list[Recipe]) -> None:
    from apportion.strategies.recipes import PRICES

    headings = (Column("recipe", no_wrap=True), "what it does · its settings · whom to cite", "adapts", "price")
    table = Table(*headings, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for recipe in everything:
        known = facts(recipe)
        own = [one for one in known["parameters"] if one["role"] != "update" and one["name"] not in _COMMON]
        lines = [recipe.summary, f"needs {recipe.needs}" if recipe.needs else ""]
        lines += [", ".join(f"{one['role']}.{one['name']}" for one in own), *known["citations"][:1]]
        table.add_row(recipe.name, "\n".join(filter(None, lines)), "\n".join(recipe.adapts), recipe.price)
    console = screen()
    console.print(table)
    print_lines(
        console,
        *(f"price {price}: {words}" for price, words in PRICES.items()),
        "All private ones take clip.groups, clip.allocation and noise.multiplier too, by --set, and those that leave the weights to an "
        "optimiser parts of an update, as update.Plain.average, update.LearningRate.warm_up or update.TailAverage.fraction.",
        "One in detail, with formula and schedule: apportion recipes du-dynamic",
    )


_COMMON = ("groups", "allocation", "multiplier")


def _explain(recipe: Recipe, explained: dict[str, Any], settings: list[str]) -> None:
    from apportion.strategies.recipes import PRICES

    lines = [f"{recipe.name}: {recipe.summary}", ""]
    for part in explained["parts"]:
        lines += [f"{part['role']:<8}{part['kind']}: {part['formula']}"]
        lines += [f"        Source: {part['source']}"] if part["source"] else []
    lines += ["", f"adapts  {', '.join(recipe.adapts) or 'nothing'}", f"price   {PRICES[recipe.price]}"]
    lines += [f"needs   {recipe.needs or 'no public data'}", ""]
    if explained["parameters"]:
        lines += ["Hyper-parameters, each as --set ROLE.NAME=VALUE"]
    for one in explained["parameters"]:
        lines.append(f"  {one['role']}.{one['name']} = {json.dumps(one['value'])}    {one['meaning']}")
    course = explained["schedule"]
    if course["noise"] is not None:
        lines += ["", f"Schedule of {course['steps']} steps with q = {course['sample_rate']:g}"]
        lines += [_line("noise", course["noise"], "of the first multiplier, which the budget decides")]
        unknown = "follows released values" if recipe.complete else "waits for its thresholds"
        lines += [f"  clip    {unknown}" if course["clip"] is None else _line("clip", course["clip"], "")]
        lines += ["", *_next_steps(recipe, settings)]
    if explained["citations"]:
        lines += [f"Cite: {', '.join(explained['citations'])}  (BibTeX: apportion.cite({recipe.name!r}))"]
    typer.echo("\n".join(lines))


def _next_steps(recipe: Recipe, settings: list[str]) -> list[str]:
    """Commands that work as they are, with the settings that were said."""
    if recipe.complete:
        said = "".join(f" --set {shlex.quote(setting)}" for setting in settings)
        return [f"With a budget: apportion plan --recipe {recipe.name}{said} --epsilon 3 --data digits"]
    return [
        f"First find thresholds: apportion search {_EXAMPLE_SEARCH}",
        f"Then use them: apportion train --recipe {recipe.name} --set clip.file=thresholds.json --data digits --epsilon 3 --delta 1e-5 "
        "--unit record --population 1437",
    ]


_EXAMPLE_SEARCH = "--data digits --noise-multiplier 2 --batch-size 256 --method fast --maximum 8 --runs 1 --epochs 3 --out thresholds.json"


def _line(name: str, series: list[float], unit: str) -> str:
    return f"  {name:<7} {sparkline(series)}  {series[0]:.4g} → {series[-1]:.4g} {unit}".rstrip()


def _draw(recipe: Recipe, course: dict[str, Any], out: Path) -> None:
    """Noise and threshold over the steps, on a page that needs no network."""
    from apportion.reporting.drawing import write_schedules

    drawn = {"noise multiplier ÷ the first one": course["noise"], "clip threshold": course["clip"]}
    panels = {
        title: [(recipe.name, enumerate(values, start=1))] for title, values in drawn.items() if values is not None
    }
    if not panels:
        raise InvalidArgument("html", str(out), f"{recipe.name} has no schedule to draw", "Leave it out")
    write_schedules(f"{recipe.name}: {recipe.summary}", panels, out, legend=False)
