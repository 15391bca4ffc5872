"""`apportion compare`: several recipes side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apportion import validate
from apportion.cli import options
from apportion.cli.options import option
from apportion.cli.output import (
    point_to_problems,
    print_error_stream,
    show_results,
    warn_without_privacy,
    working_in,
    write_results,
)
from apportion.compare.defaults import with_benchmark_budget, with_training_defaults
from apportion.compare.resolve import own_strategy
from apportion.data import KNOWN
from apportion.errors import InvalidArgument
from apportion.extras import EXTRAS, require_extra
from apportion.reporting.export import EXPORTS
from apportion.reporting.formatting import format_epsilon
from apportion.reporting.measures import Measure
from apportion.reporting.result import NotRun, Results, RunResult
from apportion.reporting.write import write_report
from apportion.training.storage import PROBLEMS

if TYPE_CHECKING:
    from apportion.compare.experiment import Experiment

SHORT_LIST = ("non-private", "abadi", "default")
"""What is compared if nobody says."""
_OTHER_FILES = (
    ".xlsx",
    ".xls",
    ".ods",
    ".html",
    ".htm",
    ".pdf",
    ".json",
    ".md",
    ".txt",
    ".tsv",
    ".parquet",
    ".png",
    ".svg",
)
"""Endings of files that somebody may expect, and not of folders."""


class Options(options.Table, options.Scoring, options.Featured, options.Training):
    """What is said about an experiment, instead of a file or beside it."""

    recipe: list[str] = option("Repeatable: names from `apportion recipes`.", "non-private, abadi, default")
    clip: str = option("Your own clip, module:Class or module:function, as one more recipe: abadi with it in place.")
    noise: str = option("Your own noise, likewise; with --clip in the same recipe.")
    update: str = option("Your own update, likewise.")
    seeds: list[int] = option(
        "Repeatable; makes runs reproducible and NOT private.", "secret noise, one run", name="--seed"
    )
    ledger: Path = option(
        "The shared ledger of the data set: every run is admitted to it before it starts (`apportion ledger limit`)."
    )


@options.declared_in(Options)
def compare(
    file: Annotated[str | None, typer.Argument(help="A TOML file, or the packaged one: demo.")] = None,
    all_recipes: Annotated[
        bool, option("Every recipe that needs nothing but the data; says which were skipped.", name="--all-recipes")
    ] = False,
    data_dir: options.DataDir = None,
    out: Annotated[
        Path | None, option("Folder for report and runs; or a .csv or .tex file for the table.", "runs/NAME")
    ] = None,
    as_json: options.Json = False,
    **said: Any,
) -> None:
    """Train several recipes on one data set and write report.html and results.json.

    Options override the file. On published benchmark data δ, unit and population have defaults; on your own data they are
    required.

    Examples: apportion compare demo --epsilon 1; apportion compare --data digits --all-recipes --epsilon 3 --out table.tex
    """
    require_extra("report", *EXTRAS["report"])  # before anything is trained for it
    from apportion.compare.experiment import experiment
    from apportion.strategies.recipes import READY

    recipes, ledger = said.pop("recipe", None), said.pop("ledger", None)
    own = _own_recipe({role: said.pop(role) for role in ("clip", "noise", "update") if role in said})
    settings, loss = options.split_settings(said.pop("set", None))
    if all_recipes and (file is not None or recipes):
        reason = "a file or single recipes were named as well"
        raise InvalidArgument("all-recipes", True, reason, "Pass --data, or leave --all-recipes out")
    from_file = _read(file)
    values = options.with_loss({"data": "digits"} | _override(from_file, options.with_table(said)), loss)
    if ledger is not None and all_recipes:
        recipes = [name for name in READY if name != "non-private"]
    elif ledger is not None and not recipes and "recipe" not in from_file:
        recipes = [name for name in SHORT_LIST if name != "non-private"]
    elif all_recipes:
        recipes = list(READY)
    values["recipe"] = choose_recipes(from_file.get("recipe"), recipes, settings, own)
    plan = experiment(with_benchmark_budget(with_training_defaults(values)))
    plan.check()
    name = Path(file).stem if file else f"compare-{plan.data}".replace(":", "-").replace("/", "-")
    if out is not None and out.suffix.lower() in _OTHER_FILES and not out.is_dir():
        reason = f"a table cannot be written as {out.suffix}, and a folder is hardly called so"
        raise InvalidArgument("out", str(out), reason, f"Name a folder, or a file that ends in {' or '.join(EXPORTS)}")
    exported = out if out is not None and out.suffix.lower() in EXPORTS else None
    folder = out if out is not None and exported is None else Path("runs") / name
    results = _run(plan, folder, data_dir, ledger, skip_unfit=all_recipes)
    show_results(results, folder, as_json=as_json)
    if plan.data not in KNOWN and any(run.epsilon is not None for run in results.runs):
        point_to_problems(folder / "runs" / "*" / PROBLEMS)
    if exported is not None:
        print_error_stream(f"Table     {write_report(results, exported)}")
    if as_json:
        typer.echo(json.dumps(results.to_json(history=False)))
    if results.skipped and not all_recipes:
        raise typer.Exit(1)


def _own_recipe(own: dict[str, str]) -> list[dict[str, Any]]:
    """A person's own strategies as one more recipe; none if nothing was said."""
    roles = {role: own_strategy(role, name) for role, name in own.items()}
    return [{"name": "abadi", "label": " + ".join(own.values()), **roles}] if own else []


def _read(file: str | None) -> dict[str, Any]:
    """The settings of a file, or of none."""
    from apportion.compare.experiment import find_file, read_file

    values = {} if file is None else read_file(find_file(file))
    if "experiment" in values:
        reason = "it holds [[experiment]], and a comparison is a single experiment"
        fix = "Write its settings at the top of the file, with [[recipe]] for each recipe. The studies in the repository of "
        raise InvalidArgument("file", file, reason, f"{fix}the library are run by `python -m reproduction run FILE`")
    return values


def _run(plan: Experiment, folder: Path, data_dir: Path | None, ledger: Path | None, *, skip_unfit: bool) -> Results:
    """Run the comparison and return its results. results.json is replaced after each run, so that an interruption keeps what is done."""
    from apportion.compare.comparison import collect_results
    from apportion.compare.comparison import compare as run_comparison
    from apportion.strategies.recipes import READY, RECIPES, named

    finished: list[RunResult] = []

    def announce(run: RunResult) -> None:
        finished.append(run)
        write_results(collect_results(plan.title, finished), folder)
        spent = "no privacy" if run.epsilon is None else f"ε = {format_epsilon(run.epsilon)}"
        measure = Measure.of(run.details)
        score = f"{measure.show(run.score)} {measure.name}"
        lasted = "" if run.seconds is None else f", {run.seconds:.1f} s"
        print_error_stream(f"{run.recipe:<20} {score}, {spent}{lasted}")

    def left_behind() -> str:
        report = f", and `apportion report {folder}` shows them" if finished else ""
        return f"the runs so far are in {folder / 'runs'}{report}"

    with working_in(folder, left_behind):
        if (folder / "results.json").exists():
            stays = "its runs stay (--out names another folder)"
            print_error_stream(f"the report and results.json in {folder} are replaced; {stays}")
        print_error_stream(f"{plan.title}: {', '.join(choice.shown for choice in plan.recipe)} on {plan.data}")
        if any(choice.name == "non-private" for choice in plan.recipe):
            warn_without_privacy(plan.data)
        results = run_comparison(
            plan, folder, data_dir=data_dir, progress=True, announce=announce, skip_unfit=skip_unfit, ledger=ledger
        )
    if skip_unfit:
        waiting = [NotRun(name, f"it needs {named(name).needs}") for name in RECIPES if name not in READY]
        results = replace(results, skipped=(*(results.skipped or ()), *waiting))
    for skipped in results.skipped or ():
        print_error_stream(f"{skipped.recipe:<20} skipped: {skipped.reason}")
    return results


def _override(from_file: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """What was said on the command line replaces the file's value, and the other form of it."""
    merged = {key: value for key, value in from_file.items() if key != "recipe"}
    for one, other in (("steps", "epochs"), ("sample_rate", "batch_size")):
        if one in said or other in said:
            merged.pop(one, None)
            merged.pop(other, None)
    return merged | said


def choose_recipes(
    from_file: Any, chosen: list[str] | None, settings: dict[str, Any], own: Sequence[dict[str, Any]] = ()
) -> Any:
    """The file's recipes, or the chosen ones, and a person's own; each setting goes to every recipe that has such a parameter, and into
    its label."""
    from apportion.compare.experiment import as_choice
    from apportion.strategies.recipes import ROLES

    given = from_file if from_file is not None and not chosen else list(chosen or SHORT_LIST)
    if not isinstance(given, list):
        return given  # the file is wrong; the settings say how
    choices: list[Any] = [*(as_choice(choice) for choice in given), *own]
    # A kind comes first: it decides which parameters there are.
    for key, value in sorted(settings.items(), key=lambda setting: not setting[0].endswith(".kind")):
        role, _, parameter = key.partition(".")
        validate.known(f"set {key}", role, ROLES, "it names no role")
        takers = [choice for choice in choices if isinstance(choice, dict) and parameter in _parameters(choice, role)]
        if not takers:
            everything = {one for choice in choices if isinstance(choice, dict) for one in _parameters(choice, role)}
            validate.known(f"set {key}", parameter, everything, "none of the recipes has such a parameter")
        for choice in takers:
            if isinstance(choice.setdefault(role, {}), dict):  # otherwise the file is wrong; the settings say how
                choice[role][parameter] = value
                if "label" in choice:  # it was written for another value
                    choice["label"] = f"{choice['label']}, {key}={value}"
        if others := [
            str(choice.get("name")) for choice in choices if isinstance(choice, dict) and choice not in takers
        ]:
            print_error_stream(f"set {key}={value}: {', '.join(others)} has no such parameter and stays as it is")
    return choices


def _parameters(choice: dict[str, Any], role: str) -> tuple[str, ...]:
    """What can be set in a role of a chosen recipe: its kind, and the hyper-parameters of that kind."""
    from apportion.strategies.descriptions import parameters_of
    from apportion.strategies.recipes import named
    from apportion.strategies.recipes.recipe import PART_PARAMETERS
    from apportion.strategies.roles import SteeringUpdate

    recipe, said = named(str(choice.get("name"))), choice.get(role)
    if not recipe.private:
        return ()
    kind = said.get("kind") if isinstance(said, dict) else None
    own = recipe.parameters(role) if kind is None else parameters_of(role, kind)
    parts = PART_PARAMETERS if role == "update" and not isinstance(recipe.update, SteeringUpdate) else ()
    return ("kind", *own, *parts)
