"""`apportion train`: one private run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apportion.cli import options
from apportion.cli.account_command import STATEMENT
from apportion.cli.output import (
    RESERVED,
    TAKEN,
    print_error_stream,
    show_results,
    warn_without_privacy,
    writable_folder,
)

if TYPE_CHECKING:
    from apportion.compare.run_settings import RunSettings


def train(
    data: options.Data = None,
    model: options.Model = None,
    activation: options.Activation = None,
    recipes: Annotated[
        list[str] | None,
        typer.Option("--recipe", help="A name from `apportion recipes`.", show_default=options.DEFAULT_RECIPE_SHOWN),
    ] = None,
    settings: options.Settings = None,
    epsilon: options.Epsilon = None,
    delta: options.Delta = None,
    unit: options.Unit = None,
    population: options.Population = None,
    sample_rate: options.SampleRate = None,
    steps: options.Steps = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    lr: options.LearningRate = None,
    optimizer: options.Optimizer = None,
    momentum: options.Momentum = None,
    micro_batch: options.MicroBatch = None,
    seed: Annotated[
        int | None, typer.Option(help="Makes the run reproducible and NOT private: for tests.", show_default=False)
    ] = None,
    data_dir: options.DataDir = None,
    ledger: options.LedgerFile = None,
    out: Annotated[Path | None, typer.Option(help="A new folder for the run.", show_default="runs/RECIPE-DATA")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Go on with the run in this folder, which crashed or was stopped. No other settings.",
            show_default=False,
        ),
    ] = None,
    recovery: Annotated[
        str | None,
        typer.Option(
            help="fresh: lost steps are drawn and paid anew. exact: repeated bit for bit, from a key in secret/.",
            show_default="fresh",
        ),
    ] = None,
    spare: Annotated[
        int | None,
        typer.Option(
            help="Lost steps that can be taken again; they are paid for.", show_default="a hundredth of the run"
        ),
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Steps between two checkpoints.", show_default="a hundredth of the run")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Train one model privately, and write a run folder with weights, history and a privacy statement.

    ε, δ, the unit and the population must be said: they are decisions about people, and have no default.

    Example: apportion train --data digits --recipe lin-decay --epsilon 3 --delta 1e-5 --unit record --population 1437

    After a crash: apportion train --resume runs/lin-decay-digits
    """
    from apportion.compare.comparison import new_folder
    from apportion.compare.defaults import published_population, with_training_defaults
    from apportion.compare.experiment import experiment
    from apportion.compare.run_settings import RunSettings, load_settings
    from apportion.errors import InvalidArgument

    if resume is not None:
        said = options.given(
            data=data, model=model, activation=activation, set=settings, epsilon=epsilon, delta=delta, unit=unit, population=population,
            sample_rate=sample_rate, steps=steps, epochs=epochs, batch_size=batch_size, lr=lr, optimizer=optimizer, momentum=momentum,
            micro_batch=micro_batch, seed=seed, ledger=ledger, out=out, recovery=recovery, spare=spare,
            checkpoint_every=checkpoint_every, recipe=recipes,
        )  # fmt: skip
        if said:
            name, value = next(iter(said.items()))
            raise InvalidArgument(
                name, value, "a resumed run keeps the settings it was started with", "Pass --resume alone"
            )
        _run(load_settings(resume), resume, data_dir, as_json=as_json, resume=True)
        return
    if recipes and len(recipes) > 1:
        raise InvalidArgument(
            "recipe",
            ", ".join(recipes),
            "a run has one recipe",
            "Pass one, or compare several with `apportion compare`",
        )
    recipe = recipes[0] if recipes else options.DEFAULT_RECIPE
    if data is None:
        raise InvalidArgument(
            "data", None, "there is nothing to train on", "Pass --data digits, or see `apportion data list`"
        )
    if population is None:
        known = published_population(data)
        hint = (
            f"Pass --population {known}, the published size of {data}"
            if known
            else "Pass --population and a public figure for your data, which need not be exact"
        )
        raise InvalidArgument(
            "population",
            None,
            "the number of records must be declared, not counted: counting would reveal a record",
            hint,
        )
    values = options.given(
        data=data,
        model=model,
        activation=activation,
        epsilon=epsilon,
        delta=delta,
        unit=unit,
        population=population,
        sample_rate=sample_rate,
        steps=steps,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        optimizer=optimizer,
        momentum=momentum,
        micro_batch=micro_batch,
        seeds=None if seed is None else [seed],
    )
    choice: dict[str, Any] = {"name": recipe}
    for key, value in options.parse_settings(settings).items():
        role, _, parameter = key.partition(".")
        choice.setdefault(role, {})[parameter] = value
    plan = experiment(with_training_defaults(values | {"recipe": [choice], "title": f"{recipe} on {data}"}))
    plan.check()
    if recipe == "non-private":
        warn_without_privacy(data)
    request = RunSettings(
        experiment=plan,
        ledger=None if ledger is None else ledger.resolve(),
        mode=recovery or "fresh",
        spare=spare,
        every=checkpoint_every,
    )
    folder = out or new_folder(Path("runs"), f"{recipe}-{data}".replace(":", "-").replace("/", "-"))
    _run(request, folder, data_dir, as_json=as_json, resume=False)


def _run(request: RunSettings, folder: Path, data_dir: Path | None, *, as_json: bool, resume: bool) -> None:
    """Train, new or resumed, and show what came of it."""
    from apportion.compare.comparison import collect_results, run_recipe
    from apportion.compare.resolve import resolve
    from apportion.errors import ApportionError
    from apportion.training.folders import tidied

    plan = request.experiment
    subject = resolve(plan.data, plan.model, data_dir)
    seed = plan.seeds[0] if plan.seeds else None
    with tidied(folder):
        writable_folder(folder)
        if not resume:
            request.save(folder)
        try:
            run = run_recipe(
                plan,
                plan.recipe[0],
                subject,
                seed,
                folder,
                progress=True,
                storage=request.storage(folder, resume=resume),
                spare=request.spare_steps,
            )
        except ApportionError:
            if not resume:
                request.forget(folder)
            raise
        except KeyboardInterrupt:
            print_error_stream(f"interrupted: go on with `apportion train --resume {folder}`")
            raise
    show_results(collect_results(plan.title, [run]), folder, as_json=as_json)
    if as_json:
        typer.echo(json.dumps(run.to_json(history=False)))
    elif run.epsilon is not None:
        print_error_stream(f"ε = {run.epsilon_spent:.4f} {TAKEN}; {run.epsilon:.4f} {RESERVED}: the guarantee.")
        print_error_stream(f"Privacy statement: {(folder / STATEMENT).with_suffix('.md')}")
