"""`apportion tune`: good settings, and an honest price for finding them."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apportion.budget import Public
from apportion.cli import options
from apportion.cli.options import option
from apportion.cli.output import print_error_stream, working_in
from apportion.compare.defaults import with_benchmark_budget, with_training_defaults
from apportion.compare.resolve import resolve
from apportion.data import KNOWN
from apportion.errors import InvalidArgument

if TYPE_CHECKING:
    from apportion.compare.experiment import Experiment
    from apportion.tuning import SearchPlan, Tuned


class Options(options.Training):
    """What every trial is, but for what is varied."""

    data: options.NoTable
    recipe: list[str] = option("Repeatable: all get the same trials.", options.DEFAULT_RECIPE_SHOWN)


@options.declared_in(Options)
def tune(
    vary: Annotated[
        list[str] | None,
        option(
            "What to choose from: lr, optimizer, batch_size, epochs, …, clip.start, model.activation. Repeatable.",
            metavar="NAME=VALUE,VALUE",
        ),
    ] = None,
    public: Annotated[
        bool,
        option("You declare: anything about this data may be published. Not needed for benchmarks.", name="--public"),
    ] = False,
    trials: Annotated[int | None, option("Public data: trials for each recipe. Free.")] = None,
    expected_trials: Annotated[
        float | None, option("Private data: the mean of their random number. Charged to --ledger.")
    ] = None,
    distribution: Annotated[
        str, option("Private data: of that number: logarithmic (cheapest), geometric, or a shape such as 0.5.")
    ] = "logarithmic",
    seed: Annotated[int, option("Public data: the same seed gives the same trials.")] = 0,
    processes: Annotated[int, option("Public data: trials trained at one time.")] = 1,
    data_dir: options.DataDir = None,
    ledger: Annotated[Path | None, option("The shared ledger of the data set (`apportion ledger limit`).")] = None,
    out: Annotated[Path | None, option("A new folder.", "runs/tune-DATA")] = None,
    resume: Annotated[
        bool, option("Go on with the search in --out. All other options as before.", name="--resume")
    ] = False,
    dry_run: Annotated[
        bool, option("Show the price of the search beside that of one run, and stop.", name="--dry-run")
    ] = False,
    as_json: options.Json = False,
    **said: Any,
) -> None:
    """Search for good settings: for free on public data, or on private data for a price that covers the whole search.

    On public data (--trials) nothing is charged; hopeless trials are pruned, and the best settings carry over to a private run of the
    same plan. On private data (--expected-trials, --ledger) the number of trials is drawn at random and stays secret, the whole search
    is charged before it starts, and only the winner is published; its ε is that of the search. Either way trials are ranked by the test
    data, which must be public.

    Example: apportion tune --data digits --trials 12 --recipe abadi --recipe lin-decay --vary lr=0.5,1,2 --epsilon 3 --steps 50

    Example: apportion tune --data my:records --model my:model --expected-trials 10 --ledger patients.sqlite --vary lr=0.5,1,2
    --epsilon 3 --delta 1e-6 --unit record --population 60000 --batch-size 600 --epochs 10 --dry-run
    """
    from apportion.tables.table_files import is_table
    from apportion.tuning import plan_search
    from apportion.tuning.space import Space

    if "data" not in said:
        raise InvalidArgument("data", None, "there is nothing to search on", "Pass --data digits, or your own")
    if is_table(said["data"]):
        reason = "a search does not read tables by a schema"
        fix = "Write a function that returns (apportion.tables.records(...), apportion.Public(...)), and pass --data module:function"
        raise InvalidArgument("data", said["data"], reason, fix)
    if (trials is None) == (expected_trials is None):
        raise InvalidArgument(
            "trials/expected_trials",
            (trials, expected_trials),
            "a search on public data has a number of trials, one on private data a random number with a mean",
            "Pass --trials 12 for public data, or --expected-trials 10 and --ledger for private data",
        )
    if resume and out is None:
        raise InvalidArgument("resume", True, "it must say where the search is", "Pass --out, the folder of the search")
    wanted, space = _experiment(said, private=trials is None), _parse_vary(vary)
    plans = _plans(wanted)
    search: dict[str, Any] = {"space": space, "lr": None if "lr" in space else wanted.lr}
    if "optimizer" not in space:
        search["optimizer"] = _optimizer(wanted)
    if expected_trials is not None:
        search |= {"expected_trials": expected_trials, "distribution": _shape(distribution)}
        if dry_run:
            _preview(plan_search(plans, **search), ledger, as_json=as_json)
            return
    elif trials is not None:
        if dry_run:
            _preview_free(Space(plans, space, search["lr"]), trials, as_json=as_json)
            return
        search |= {"trials": trials, "processes": processes, "seed": seed}
    storage = {"ledger": ledger, "resume": resume}
    _run(wanted, plans, search, storage, public=public, data_dir=data_dir, out=out, as_json=as_json)


def _experiment(said: dict[str, Any], *, private: bool) -> Experiment:
    """What is trained and how. For private data the budget and the population must be said."""
    from apportion.cli.compare_command import choose_recipes
    from apportion.compare.experiment import experiment

    settings, recipes = options.parse_settings(said.pop("set", None)), said.pop("recipe", [options.DEFAULT_RECIPE])
    values = with_training_defaults({**said, "recipe": choose_recipes(None, recipes, settings)})
    wanted = experiment(values if private else with_benchmark_budget(values))
    wanted.check()
    return wanted


def _plans(wanted: Experiment) -> list[Any]:
    from apportion.planning import plan_steps

    chosen = [(choice.shown, choice.recipe()) for choice in wanted.recipe]
    return [plan_steps(replace(one, name=name), wanted.budget(), wanted.sampling()) for name, one in chosen]


def _optimizer(wanted: Experiment) -> Any:
    from apportion.training.optimizers import with_momentum

    return with_momentum(wanted.optimizer, wanted.momentum)


def _parse_vary(vary: list[str] | None) -> dict[str, list[Any]]:
    """["lr=0.5,1"] → {"lr": [0.5, 1]}; a JSON list stands for itself."""
    if not vary:
        raise InvalidArgument("vary", None, "there is nothing to choose from", "Pass for example --vary lr=0.5,1,2")
    space: dict[str, list[Any]] = {}
    for one in vary:
        name, equals, text = one.partition("=")
        if not (name and equals and text):
            raise InvalidArgument("vary", one, "it is not of the form NAME=VALUE,VALUE", "Try --vary lr=0.5,1,2")
        if name in space:
            raise InvalidArgument("vary", one, f"{name} was given before", "List all its values once")
        listed = options.parse_value(text)
        space[name] = listed if isinstance(listed, list) else [options.parse_value(part) for part in text.split(",")]
    return space


def _shape(distribution: str) -> str | float:
    value = options.parse_value(distribution)
    return float(value) if isinstance(value, (int, float)) else distribution


def _preview(price: SearchPlan, ledger: Path | None, *, as_json: bool) -> None:
    facts = price.describe()
    lines = [str(price)]
    if ledger is not None:
        from apportion.accounting.ledger import Ledger

        books = Ledger.open(ledger)
        rule, left = books.rule, books.left()
        if rule is not None:
            cost = books.price(price.selection, price.budget)
            facts["ledger"] = {"cost": rule.describe(cost), "left": rule.describe(left), "fits": cost.fits(left)}
            lines.append(f"{ledger}: the search costs {rule.describe(cost)}; left is {rule.describe(left)}")
        books.close()
    typer.echo(json.dumps(facts) if as_json else "\n".join(lines))


def _preview_free(space: Any, trials: int, *, as_json: bool) -> None:
    from apportion.tuning.tuned import FREE

    facts = {"price": FREE, "trials": trials * len(space.plans), "recipes": len(space.plans), "candidates": space.size}
    words = f"{trials} trials for each of {len(space.plans)} recipes, {space.size} candidates. {FREE}"
    typer.echo(json.dumps(facts) if as_json else words)


def _run(
    wanted: Experiment,
    plans: list[Any],
    search: dict[str, Any],
    storage: dict[str, Any],
    *,
    public: bool,
    data_dir: Path | None,
    out: Path | None,
    as_json: bool,
) -> None:
    from torch.nn.functional import cross_entropy

    from apportion.compare.comparison import new_folder
    from apportion.execution import Execution
    from apportion.training.checkpoint import replace_file
    from apportion.training.storage import Storage
    from apportion.tuning import tune as search_settings

    subject, data = resolve(wanted.data, wanted.model, data_dir), wanted.data
    if subject.test is None:
        raise InvalidArgument("data", data, "it has no public test part to rank trials by", "Add one")
    train = _declared(subject.train, data, search, public=public)
    folder = out or new_folder(Path("runs"), f"tune-{data}")
    build = subject.build if wanted.activation is None else partial(subject.build, activation=wanted.activation)
    with working_in(folder, lambda: f"go on with the same command and --out {folder} --resume"):
        tuned = search_settings(
            build,
            cross_entropy,
            train,
            plans,
            evaluate=subject.test,
            execution=Execution(micro_batch=wanted.micro_batch),
            storage=Storage(folder, **storage),
            progress=True,
            **search,
        )
        replace_file(folder / "tuned.json", tuned.to_json().encode())
    _show(tuned, folder, as_json=as_json)


def _declared(train: Any, data: str, search: dict[str, Any], *, public: bool) -> Any:
    """The records, as public or as private as they were declared; refuses a search of the other kind."""
    if "trials" in search:
        if isinstance(train, Public) or public or data in KNOWN:
            return train if isinstance(train, Public) else Public(train)
        raise InvalidArgument(
            "trials",
            search["trials"],
            "nobody declared this data public, and on private data every trial is a release: their number must be random, and be paid for",
            "Pass --expected-trials 10 and --ledger; or --public, if anything about this data may be published",
        )
    if isinstance(train, Public) or public:
        reason = "the data was declared public, and a search on it is free"
        raise InvalidArgument("expected_trials", search["expected_trials"], reason, "Pass --trials 12")
    print_error_stream(
        "private search: charged as a whole before its first trial. How many trials there are is drawn and not shown: the "
        "guarantee covers the winner alone."
    )
    return train


def _show(tuned: Tuned, folder: Path, *, as_json: bool) -> None:
    from apportion.tuning.private_search import WINNER

    if as_json:
        print_error_stream(f"Written to {folder / 'tuned.json'}")
        typer.echo(json.dumps(json.loads(tuned.to_json())))
        return
    typer.echo(str(tuned))
    if tuned.run is not None:
        typer.echo(f"Winner    {folder / WINNER}   (privacy statement: public/privacy.md)")
        return
    parts = [f"--recipe {tuned.settings['recipe']}"]
    for name, value in tuned.settings.items():
        if "." in name and not name.startswith("model."):
            parts.append(f"--set {name}={value}")
        elif name != "recipe":
            parts.append(f"--{name.removeprefix('model.').replace('_', '-')} {value}")
    typer.echo(f"Use it    apportion train --data YOUR_DATA {' '.join(parts)}   (all trials: {folder / 'tuned.json'})")
