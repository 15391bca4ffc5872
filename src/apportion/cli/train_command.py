"""`apportion train`: one private run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apportion import validate
from apportion.budget import User
from apportion.cli import options
from apportion.cli.account_command import STATEMENT
from apportion.cli.options import option
from apportion.cli.output import (
    RESERVED,
    TAKEN,
    point_to_problems,
    print_error_stream,
    show_results,
    warn_without_privacy,
    working_in,
)
from apportion.compare.defaults import explain_choices, published_population, with_features, with_training_defaults
from apportion.compare.resolve import resolve
from apportion.errors import ApportionError, InvalidArgument
from apportion.extras import EXTRAS, require_extra
from apportion.integrations.released_logs import absolute_log, open_log
from apportion.reporting.held_out_score import HeldOutScore
from apportion.reporting.result import RunResult
from apportion.training.storage import PROBLEMS

if TYPE_CHECKING:
    from apportion.compare.experiment import Experiment
    from apportion.compare.held_out import HoldoutChoice
    from apportion.compare.run_settings import RunSettings
    from apportion.planning import Plan
    from apportion.ranks import Ranks


_HOLDOUT_SHARE = 0.05
"""Of ε, for the score of held-out records, if nobody says."""


class Options(options.Table, options.Scoring, options.Featured, options.Training):
    """What is said about a new run; a resumed one knows it."""

    plan: Path = option("Execute this plan, written by `apportion plan --out`.")
    seed: int = option("Makes the run reproducible and NOT private: for tests.")
    ledger: Path = option("The shared ledger of the data set (`apportion ledger limit`).")
    out: Path = option("A new folder for the run.", "runs/RECIPE-DATA")
    log: str = option(
        "Where released values are logged besides: csv:FILE, tensorboard:FOLDER or mlflow:URI.",
        metavar="KIND:PLACE",
    )
    recovery: str = option(
        "fresh: lost steps are drawn and paid anew. exact: repeated bit for bit, from a key in secret/.", "fresh"
    )
    spare: int = option(
        "Steps that can be taken again after a crash; they are paid for.",
        "a hundredth of the run, and 50 more from 5,000 steps on",
    )
    holdout: float = option("Of a table: the part of the records that is held out, for one noisy score.")
    holdout_epsilon: float = option("The part of --epsilon that this score costs.", "a twentieth")
    checkpoint_every: int = option("Steps between two checkpoints.", "a hundredth of the run")


@options.declared_in(Options)
def train(
    data_dir: options.DataDir = None,
    resume: Annotated[
        Path | None, option("Go on with the run in this folder, which crashed or was stopped. No other settings.")
    ] = None,
    as_json: options.Json = False,
    **said: Any,
) -> None:
    """Train one model privately, and write a run folder with weights, history, plan and a privacy statement.

    ε, δ, the unit and the population have no default, because they are decisions about people: pass them, or a plan that holds them.

    Example: apportion train --data digits --recipe lin-decay --epsilon 3 --delta 1e-5 --unit record --population 1437

    Example: apportion train --data t.csv --target ill --schema t.toml --epsilon 2 --delta 1e-6 --unit record --population 4000

    Example: apportion plan --data digits --epsilon 3 --out plan.json; apportion train --data digits --plan plan.json

    After a crash: apportion train --resume runs/lin-decay-digits

    On several cores, devices or machines: torchrun --nproc-per-node 2 -m apportion train …
    """
    require_extra("report", *EXTRAS["report"])  # before anything is trained for it
    from apportion.compare.comparison import new_folder
    from apportion.compare.run_settings import RunSettings, load_settings
    from apportion.compare.table_subject import require_table_choice

    if resume is not None:
        for name, value in said.items():
            reason = "a resumed run keeps the settings it was started with"
            raise InvalidArgument(name, value, reason, "Pass --resume alone")
        _start(lambda: load_settings(resume), resume, data_dir, as_json=as_json, resume=True)
        return
    if "data" not in said:
        fix = "Pass --data digits, or see `apportion data list`"
        raise InvalidArgument("data", None, "there is nothing to train on", fix)
    said = options.with_table(said)
    require_table_choice(said["data"], said.get("table"))
    said, holdout = _hold_out(said)
    experiment, planned = _from_file(said) if "plan" in said else _from_options(said)
    if planned is None:
        for name in ("ledger", "log"):
            if name in said:
                reason = "it is about what a private run releases, and this recipe has no privacy"
                raise InvalidArgument(name, said[name], reason, "Leave it out, or choose a private recipe")
        warn_without_privacy(said["data"])
    planned_already = dict.fromkeys(("sample_rate", "steps"), True) if "plan" in said else {}
    request = RunSettings(
        experiment=experiment,
        chosen=tuple(explain_choices(said | planned_already, experiment.model_dump())),
        plan=None if planned is None else planned.to_json(),
        ledger=said["ledger"].resolve() if "ledger" in said else None,
        recovery=said.get("recovery", "fresh"),
        every=said.get("checkpoint_every"),
        holdout=holdout,
        log=None if "log" not in said else absolute_log(said["log"]),
    )
    folder = said.get("out") or new_folder(Path("runs"), f"{experiment.recipe[0].shown}-{_shown(said)}")
    _start(lambda: request, folder, data_dir, as_json=as_json, resume=False)


def _start(
    settings: Callable[[], RunSettings], folder: Path, data_dir: Path | None, *, as_json: bool, resume: bool
) -> None:
    """Run, in this process or in those that torchrun has started. The first of them has the settings, keeps the run and tells of it."""
    from apportion.distributed import torchrun_ranks

    with torchrun_ranks() as ranks:
        with ranks.joined():
            found = settings() if ranks.rank == 0 else None
        request = ranks.agree(found)
        assert request is not None
        if ranks.count > 1 and request.holdout is not None:
            reason = "which records are held out is decided by one process"
            raise InvalidArgument("holdout", request.holdout.fraction, reason, "Leave it out, or use one process")
        if ranks.rank == 0:
            _run(request, folder, data_dir, ranks, as_json=as_json, resume=resume)
            return
        with TemporaryDirectory() as nowhere:
            _train(request, Path(nowhere), data_dir, ranks, resume=resume)


def _shown(said: dict[str, Any]) -> str:
    """What the data is called: of a table the name of its file."""
    return Path(said["data"]).name if "table" in said else str(said["data"])


def _hold_out(said: dict[str, Any]) -> tuple[dict[str, Any], HoldoutChoice | None]:
    """What is left for training if records are held out: a part of ε pays for their score, and a part of the population is missing."""
    from apportion.compare.held_out import HoldoutChoice

    if "holdout" not in said:
        if "holdout_epsilon" in said:
            reason = "it is the price of a score on held-out records, and none are"
            raise InvalidArgument("holdout_epsilon", said["holdout_epsilon"], reason, "Pass --holdout 0.2 too")
        return said, None
    fraction = validate.in_open_unit("holdout", said["holdout"], "it is a part of the records", "Try --holdout 0.2")
    paid = "the score of held-out records is paid from --epsilon, and there is none"
    apart = "a file has an entry for every record, also for those that are held out"
    scored = "held-out records are scored by accuracy, or by the mean absolute error of a number"
    for name, reason in {"plan": paid, "group": paid, "user_ids": apart, "metric": scored}.items():
        if name in said:
            fix = f"Leave --{name.replace('_', '-')} out, or measure on public data: --test"
            raise InvalidArgument("holdout", fraction, reason, fix)
    if "table" not in said or "test" in said["table"] or said.get("recipe") == ["non-private"]:
        reason = "it is for private training on a table without public records to measure on"
        raise InvalidArgument("holdout", fraction, reason, "Leave it out, or pass --schema and no --test")
    if "epsilon" not in said or "population" not in said:
        return said, None  # which is refused, with a better reason
    total = validate.positive("epsilon", said["epsilon"], "it is the privacy loss to be spent", "Try --epsilon 3")
    price = said.get("holdout_epsilon", _HOLDOUT_SHARE * total)
    if not 0 < price < total:
        reason = f"it must be positive, and a part of --epsilon {total:g}"
        raise InvalidArgument("holdout_epsilon", price, reason, f"Try --holdout-epsilon {_HOLDOUT_SHARE * total:g}")
    left = {"epsilon": total - price, "population": round(said["population"] * (1 - fraction))}
    return said | left, HoldoutChoice(fraction=fraction, epsilon=price)


def _from_options(said: dict[str, Any]) -> tuple[Experiment, Plan | None]:
    """The experiment that the options describe, and its plan; `None` for training without privacy."""
    recipes, data = said.get("recipe", [options.DEFAULT_RECIPE]), said["data"]
    if len(recipes) > 1:
        fix = "Pass one, or compare several with `apportion compare`"
        raise InvalidArgument("recipe", ", ".join(recipes), "a run has one recipe", fix)
    if "population" not in said:
        reason = "the number of records must be declared, not counted: counting would reveal a record"
        fix = "Pass --population and a public figure for your data, which need not be exact"
        if known := published_population(data):
            fix = f"Pass --population {known}, the published size of {data}"
        raise InvalidArgument("population", None, reason, fix)
    choice: dict[str, Any] = {"name": recipes[0]}
    settings, loss = options.split_settings(said.get("set"))
    said = options.with_loss(said, loss)
    for key, value in settings.items():
        role, _, parameter = key.partition(".")
        choice.setdefault(role, {})[parameter] = value
    described = _describe(said, choice)
    recipe, sampling = described.recipe[0].recipe(), described.sampling()
    if not recipe.private:
        return described, None
    spare = said.get("spare", options.default_spare(recipe, sampling.steps))
    return described, described.plan(recipe, spare)


def _from_file(said: dict[str, Any]) -> tuple[Experiment, Plan]:
    """The plan of a file, and the experiment that executes it."""
    from apportion.strategies.recipes import RECIPES

    path = said["plan"]
    for name in (*options.Planned.__annotations__, "spare"):
        if name in said:
            raise InvalidArgument(name, said[name], f"{path} says it already", "Leave it out, or make another plan")
    plan = options.read_plan(path)
    name = plan.recipe.name
    choice = {"name": name if name in RECIPES else options.DEFAULT_RECIPE, "label": name}
    budget, sampling = plan.budget, plan.sampling
    facts: dict[str, Any] = {"delta": budget.delta, "unit": budget.unit.name}
    facts |= {"group": [asdict(one) for one in budget.groups]} if budget.groups else {"epsilon": budget.epsilon}
    facts |= budget.unit.describe() if isinstance(budget.unit, User) else {}
    sizes = {"population": sampling.population, "sample_rate": sampling.sample_rate, "steps": sampling.steps}
    described = _describe(said | facts | sizes, choice)
    if described.channel_norm() != plan.norm:
        shown = "with" if plan.norm is not None else "without"
        reason = (
            f"{path} is a plan {shown} the question by which channels are normalised, and this asks for something else"
        )
        fix = 'Say the same in both: --features "scatter norm=channel"'
        raise InvalidArgument("features", said.get("features"), reason, fix)
    return described, plan


def _describe(said: dict[str, Any], choice: dict[str, Any]) -> Experiment:
    """What is trained and how, with the defaults of the data where nothing was said."""
    from apportion.compare.experiment import Experiment, experiment

    values = {name: value for name, value in said.items() if name in Experiment.model_fields}
    values |= {name: said[name].resolve() for name in ("group_labels", "user_ids") if name in said}
    if "seed" in said:
        values["seeds"] = [said["seed"]]
    shown = choice.get("label") or choice["name"]
    values |= {"recipe": [choice], "title": f"{shown} on {_shown(said)}"}
    filled = with_training_defaults(with_features(values))
    described = experiment(filled)
    described.check()
    return described


def _describe_score(run: RunResult) -> str:
    held = HeldOutScore.of(run.details)
    assert held is not None
    lost = ": it was asked before a crash, or did not fit into the ledger" if held.value is None else ""
    return held.describe() + lost


def _train(request: RunSettings, folder: Path, data_dir: Path | None, ranks: Ranks, *, resume: bool) -> RunResult:
    """Train, new or resumed, and score the records that were held out."""
    from apportion.compare.comparison import run_recipe
    from apportion.compare.feature_subject import on_features
    from apportion.compare.held_out import ask_score, make_key, split_subject, with_score
    from apportion.planning import Plan

    experiment, plan = request.experiment, None if request.plan is None else Plan.from_json(request.plan)
    for first in (True, False):  # others find the features that the first one has kept
        with ranks.joined():
            if (ranks.rank == 0) == first:
                subject = resolve(experiment.data, experiment.model, data_dir, experiment.table)
                subject = on_features(experiment, subject, data_dir)
    seed, holdout, held = experiment.seeds[0] if experiment.seeds else None, request.holdout, None
    if holdout is not None and plan is not None and not resume:
        holdout.require_room(request.ledger, plan)
    log = None if request.log is None or ranks.rank else open_log(request.log, resume=resume)
    with working_in(folder, lambda: f"go on with `apportion train --resume {folder}`"):
        if not resume:
            request.save(folder)
        try:
            if holdout is not None and plan is not None:
                if not resume:
                    make_key(folder)
                subject, held = split_subject(subject, holdout, folder, plan.budget.unit)
            run = run_recipe(
                experiment,
                experiment.recipe[0],
                subject,
                seed,
                folder,
                progress=True,
                plan=plan,
                storage=request.storage(folder, resume=resume),
                log=log,
            )
        except ApportionError:
            if not resume:
                request.forget(folder)
            raise
        finally:
            if log is not None:
                log.close()
        if holdout is not None and plan is not None and held is not None:
            with_score(run, holdout, None, folder, request.ledger)  # what is going to be charged is stated first
            score = ask_score(held, holdout, folder, plan.budget.unit, request.ledger, seed)
            run = with_score(run, holdout, score, folder, request.ledger)
            print_error_stream(f"{_describe_score(run)}.")
    return run


def _run(
    request: RunSettings, folder: Path, data_dir: Path | None, ranks: Ranks, *, as_json: bool, resume: bool
) -> None:
    """Train, and show what came of it."""
    from apportion.compare.comparison import collect_results
    from apportion.planning import Plan
    from apportion.training.statement import show_epsilon

    experiment, plan = request.experiment, None if request.plan is None else Plan.from_json(request.plan)
    run = _train(request, folder, data_dir, ranks, resume=resume)
    show_results(collect_results(experiment.title, [run]), folder, as_json=as_json)
    if as_json:
        if run.epsilon is not None:
            point_to_problems(folder / PROBLEMS)
        typer.echo(json.dumps(run.to_json(history=False)))
        return
    _say_why_it_ended(experiment, plan, run)
    for line in request.chosen:
        print_error_stream(f"Chosen, as nothing was said: {line}.")
    if run.epsilon is not None:
        taken = run.epsilon if run.epsilon_spent is None else run.epsilon_spent
        scored = "" if "parts" not in run.details else " and the score"
        print_error_stream(
            f"ε = {show_epsilon(taken)} {TAKEN}{scored}; {show_epsilon(run.epsilon)} {RESERVED}: the guarantee."
        )
        for name, epsilon in run.details.get("parts", {}).items():
            print_error_stream(f"  {name}: ε = {show_epsilon(epsilon)}")
        for group in run.details.get("groups", ()):
            print_error_stream(f"  {group['name']}: ε = {show_epsilon(group['epsilon'])} of {group['budget']:g}")
        if (usable := run.details.get("usable")) is not None:
            print_error_stream(f"Usable records: about {usable:.0%}, by a noisy count that is part of the plan.")
        elif experiment.count_usable:
            print_error_stream(
                "Usable records were not counted: in so small batches, or so few steps, that would cost too much. If most could not "
                "be used, only the file below says so."
            )
        print_error_stream(
            f"Privacy statement: {(folder / STATEMENT).with_suffix('.md')} (to hand in: "
            f"apportion statement {folder} --out statement.html)"
        )
        point_to_problems(folder / PROBLEMS)
        if request.ledger is not None and (advice := _advise_rule(request.ledger)):
            print_error_stream(advice)


def _advise_rule(path: Path) -> str | None:
    """Whether the ledger's rule is wasteful for the runs that it has; nothing if it is not."""
    from contextlib import closing

    from apportion.accounting.ledger import Ledger
    from apportion.accounting.sharing import advise_rule

    with closing(Ledger.open(path)) as ledger:
        return advise_rule(ledger)


def _say_why_it_ended(experiment: Experiment, plan: Plan | None, run: RunResult) -> None:
    """Tell a person about a run that did not take all steps that were planned."""
    planned = experiment.sampling().steps if plan is None else plan.steps
    taken = run.steps if plan is None else run.draws
    if taken is None or taken >= planned:
        return
    if experiment.patience is not None:
        price = "" if plan is None else ", and the guarantee is that of the whole plan"
        print_error_stream(
            f"{taken} of {planned} draws were made: --patience {experiment.patience} ends a run early{price}."
        )
    if plan is not None and plan.filtered and experiment.patience is None:
        print_error_stream(
            f"The {plan.rule().name} ended the run after {taken} of {planned} draws: what was to be asked next did not fit into "
            f"ε = {plan.budget.epsilon:g}. More steps have more noise each."
        )
