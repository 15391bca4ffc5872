"""`apportion train`: one private run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from apportion.cli import options
from apportion.cli.output import print_error_stream, show_results, summary_of_run, warn_without_privacy, writable_folder


def train(
    data: options.Data = None,
    model: options.Model = None,
    recipe: Annotated[
        str, typer.Option(help="non-private, abadi, lin-decay, du-growing, du-sensitivity or du-dynamic.")
    ] = "abadi",
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
    micro_batch: options.MicroBatch = None,
    seed: Annotated[
        int | None, typer.Option(help="Makes the run reproducible and NOT private: for tests.", show_default=False)
    ] = None,
    data_dir: options.DataDir = None,
    ledger: options.LedgerFile = None,
    out: Annotated[Path | None, typer.Option(help="A new folder for the run.", show_default="runs/RECIPE-DATA")] = None,
    as_json: options.Json = False,
) -> None:
    """Train one model privately, and write a run folder with weights, history and a privacy statement.

    ε, δ, the unit and the population must be said: they are decisions about people, and have no default.

    Example: apportion train --data digits --recipe lin-decay --epsilon 3 --delta 1e-5 --unit record --population 1437
    """
    from apportion.errors import InvalidArgument
    from apportion.lab.compare import new_folder, results, run_recipe
    from apportion.lab.defaults import published_population, with_training_defaults
    from apportion.lab.resolve import resolve
    from apportion.lab.settings import experiment

    if data is None:
        raise InvalidArgument(
            "data", None, "there is nothing to train on", "Pass --data digits, or see `apportion data list`"
        )
    if population is None:
        known = published_population(data)
        hint = f"Pass --population {known}, the published size of {data}" if known else "Pass --population 60000"
        raise InvalidArgument(
            "population",
            None,
            "the number of records must be declared, not counted: counting would reveal a record",
            hint,
        )
    values = options.given(
        data=data,
        model=model,
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
        micro_batch=micro_batch,
    )
    choice: dict[str, Any] = {"name": recipe, "clip": {}, "noise": {}}
    for key, value in options.parse_settings(settings).items():
        role, _, parameter = key.partition(".")
        choice.setdefault(role, {})[parameter] = value
    plan = experiment(with_training_defaults(values | {"recipe": [choice], "title": f"{recipe} on {data}"}))
    plan.check()
    subject = resolve(plan.data, plan.model, data_dir)
    if recipe == "non-private":
        warn_without_privacy(data)
    folder = out or new_folder(Path("runs"), f"{recipe}-{data}".replace(":", "-").replace("/", "-"))
    writable_folder(folder)
    try:
        run = run_recipe(plan, plan.recipe[0], subject, seed, folder, progress=True, ledger=ledger)
    except KeyboardInterrupt:
        print_error_stream(f"interrupted: what was charged, and the model so far, are in {folder}")
        raise
    show_results(results(plan.title, [run]), folder, as_json=as_json)
    if as_json:
        typer.echo(json.dumps(summary_of_run(run)))
    else:
        print_error_stream(f"Privacy statement: {folder / 'public' / 'privacy.md'}" if run["epsilon"] else "")
