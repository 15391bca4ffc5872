"""`apportion search`: clip thresholds from public data, for a private run to use."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apportion.cli import options
from apportion.cli.output import print_error_stream, writable_folder

if TYPE_CHECKING:
    from apportion.search import SearchSettings, Trace


def search(
    data: options.Data = None,
    model: options.Model = None,
    activation: options.Activation = None,
    public: Annotated[
        bool,
        typer.Option(
            "--public", help="You declare: anything about this data may be published. Not needed for benchmarks."
        ),
    ] = False,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="z of the private run, as `apportion plan` tells it.", show_default=False)
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="How many thresholds to find.", show_default="1")] = None,
    runs: Annotated[
        int | None, typer.Option(help="Searches of the first epoch, whose mean is C₀.", show_default="5")
    ] = None,
    method: Annotated[
        str, typer.Option(help="greedy: as published. fast: at most ten candidates an epoch.")
    ] = "greedy",
    start: Annotated[float | None, typer.Option(help="The smallest candidate.", show_default="0.05")] = None,
    maximum: Annotated[float | None, typer.Option(help="The largest candidate.", show_default="2.0")] = None,
    step: Annotated[
        float | None, typer.Option(help="greedy: from one candidate to the next.", show_default="0.01")
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(help="greedy: ends when a candidate scores so much below the best.", show_default="0.02"),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Expected batch size, as in the private run.", show_default="1024")
    ] = None,
    lr: Annotated[float | None, typer.Option("--lr", help="Learning rate of that run.", show_default="1.0")] = None,
    optimizer: options.Optimizer = None,
    momentum: options.Momentum = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same search.")] = 0,
    processes: Annotated[
        int | None,
        typer.Option(help="Candidates trained at one time; changes no result.", show_default="one for each core"),
    ] = None,
    fit: Annotated[bool, typer.Option("--fit", help="Print C₀ and a of the decay C₀/t^a that fits best.")] = False,
    data_dir: options.DataDir = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The file; one that is there is gone on with.", show_default="runs/search-DATA.json"),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Find the clip threshold of each epoch on public data, by training an epoch with every candidate.

    The file is for `--recipe lin-transfer --set clip.file=FILE`; C₀ and a are for `--recipe lin-decay`. After an interruption the same
    command goes on. Data that nobody declared public is refused: a search on private records would have to be paid for.

    Example: apportion search --data digits --noise-multiplier 2 --batch-size 256 --method fast --epochs 3 --runs 1 --fit
    """
    from apportion.errors import InvalidArgument
    from apportion.search import SearchSettings

    if data is None:
        raise InvalidArgument("data", None, "there is nothing to search on", "Pass --data mnist, or other public data")
    if noise_multiplier is None:
        raise InvalidArgument(
            "noise_multiplier",
            None,
            "the best threshold depends on the noise of the private run",
            "Pass --noise-multiplier; `apportion plan --recipe abadi` with the settings of that run prints it",
        )
    if fit and (epochs or 1) < 2:
        raise InvalidArgument("fit", True, "a decay cannot be fitted to one threshold", "Pass --epochs 2 or more")
    settings = SearchSettings(
        data=data,
        public=public,
        noise_multiplier=noise_multiplier,
        rule=_rule(method, options.given(start=start, maximum=maximum, step=step, tolerance=tolerance)),
        seed=seed,
        **options.given(
            model=model,
            activation=activation,
            epochs=epochs,
            runs=runs,
            batch_size=batch_size,
            lr=lr,
            optimizer=optimizer,
            momentum=momentum,
        ),
    )
    file = out or Path("runs") / f"search-{data.replace(':', '-').replace('/', '-')}.json"
    trace = _run(settings, file, data_dir, (os.cpu_count() or 1) if processes is None else processes)
    _show(trace, settings, file, fit=fit, as_json=as_json)
    if as_json:
        typer.echo(json.dumps({key: value for key, value in trace.content().items() if key != "trace"}))


def _run(settings: SearchSettings, file: Path, data_dir: Path | None, processes: int) -> Trace:
    """Search, or continue the search in `file`."""
    from apportion.search import Trace
    from apportion.search import search as run_search
    from apportion.search.search_progress import search_progress
    from apportion.search.trainer import open_trainer
    from apportion.training.folders import tidied

    with tidied(file.parent):
        writable_folder(file.parent)
        trace = Trace.open(file, settings)
        if trace.trials:
            print_error_stream(f"going on with {file}: {len(trace.trials)} candidates were tried already")
        try:
            with search_progress(trace) as show:
                run_search(trace, partial(open_trainer, settings, data_dir), processes=processes, show=show)
        except KeyboardInterrupt:
            print_error_stream(f"interrupted: the same command goes on from {file}")
            raise
    return trace


def _rule(method: str, said: dict[str, Any]) -> Any:
    from dataclasses import fields

    from apportion import validate
    from apportion.errors import InvalidArgument
    from apportion.search.search_rules import RULES

    kind = RULES[validate.known("method", method, RULES)]
    for name in said.keys() - {field.name for field in fields(kind)}:
        raise InvalidArgument(name, said[name], f"the method {method} has no such number", "Leave it out")
    return kind(**said)


def _show(trace: Trace, settings: SearchSettings, file: Path, *, fit: bool, as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from apportion.search import fit_decay
    from apportion.search.trace import NOTE

    console = Console(stderr=as_json, highlight=False)
    table = Table(title=f"{settings.rule.name} search on {settings.data}, z = {settings.noise_multiplier:g}")
    for heading in ("epoch", "clip threshold", "test accuracy", "candidates"):
        table.add_column(heading, justify="right")
    for epoch, threshold in enumerate(trace.thresholds, start=1):
        tried = trace.tried(1, epoch)
        score = max(trial.accuracy for trial in tried)
        table.add_row(str(epoch), f"{threshold:.4g}", f"{score:.1%}", str(len(tried)))
    console.print(table)
    first = trace.first_thresholds
    console.print(
        f"C₀ = {(start := trace.content()['start']):.4g}: the first epoch, mean of {len(first)} "
        f"({', '.join(f'{threshold:.4g}' for threshold in first)}). {len(trace.trials)} candidates in all.",
        soft_wrap=True,
    )
    console.print(f"As published   --recipe lin-decay --set clip.start={start:.4g}", soft_wrap=True)
    if fit:
        found = fit_decay(trace.thresholds)
        console.print(
            f"Fit to all epochs: C_t = C₀/t^a with C₀ = {found.start:.4g} (fitted) and a = {found.power:.4g}",
            soft_wrap=True,
        )
        use = f"--recipe lin-decay --set clip.start={found.start:.4g} --set clip.power={found.power:.4g}"
        console.print(
            f"As fitted      {use}"
            if found.decays
            else "The recipe lin-decay takes 0 < a ≤ 1, so this one is not for it.",
            soft_wrap=True,
        )
    console.print(NOTE, soft_wrap=True)
    console.print(f"All of them    --recipe lin-transfer --set clip.file={file}", soft_wrap=True, markup=False)
