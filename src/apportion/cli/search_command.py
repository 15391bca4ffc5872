"""`apportion search`: clip thresholds from public data, for a private run to use."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table

from apportion import validate
from apportion.cli import options
from apportion.cli.options import option
from apportion.cli.output import print_error_stream, print_lines, screen, working_in
from apportion.errors import InvalidArgument

if TYPE_CHECKING:
    from apportion.search import SearchSettings, Trace


class Options(options.Optimiser, options.Subject):
    """What is said about the search and the private run that it is for."""

    data: options.NoTable
    noise_multiplier: float = option("z of the private run, as `apportion plan` tells it.")
    epochs: int = option("How many thresholds to find.", "1")
    runs: int = option("Searches of the first epoch, whose mean is C₀.", "5")
    start: float = option("The smallest candidate.", "0.05")
    maximum: float = option("The largest candidate.", "2.0")
    step: float = option("greedy: from one candidate to the next.", "0.01")
    tolerance: float = option("greedy: ends when a candidate scores so much below the best.", "0.02")
    batch_size: int = option("Expected batch size, as in the private run.", "1024")
    lr: float = option("Learning rate of that run.", "1.0")


@options.declared_in(Options)
def search(
    public: Annotated[
        bool,
        option("You declare: anything about this data may be published. Not needed for benchmarks.", name="--public"),
    ] = False,
    method: Annotated[str, option("greedy: as published. fast: at most ten candidates an epoch.")] = "greedy",
    seed: Annotated[int, option("The same seed gives the same search.")] = 0,
    processes: Annotated[
        int | None, option("Candidates trained at one time; changes no result.", "one for each core")
    ] = None,
    fit: Annotated[bool, option("Print C₀ and a of the decay C₀/t^a that fits best.", name="--fit")] = False,
    data_dir: options.DataDir = None,
    out: Annotated[Path | None, option("The file; one that is there is gone on with.", "runs/search-DATA.json")] = None,
    as_json: options.Json = False,
    **said: Any,
) -> None:
    """Find the clip threshold of each epoch on public data, by training an epoch with every candidate.

    The file is for `--recipe lin-transfer --set clip.file=FILE`; C₀ and a are for `--recipe lin-decay`. After an interruption the same
    command goes on. Data that nobody declared public is refused: a search on private records would have to be paid for.

    Example: apportion search --data digits --noise-multiplier 2 --batch-size 256 --method fast --epochs 3 --runs 1 --fit
    """
    from apportion.search import SearchSettings

    if "data" not in said:
        raise InvalidArgument("data", None, "there is nothing to search on", "Pass --data mnist, or other public data")
    if "noise_multiplier" not in said:
        reason = "the best threshold depends on the noise of the private run"
        fix = "Pass --noise-multiplier; `apportion plan --recipe abadi` with the settings of that run prints it"
        raise InvalidArgument("noise_multiplier", None, reason, fix)
    if fit and said.get("epochs", 1) < 2:
        raise InvalidArgument("fit", True, "a decay cannot be fitted to one threshold", "Pass --epochs 2 or more")
    numbers: dict[str, Any] = {
        name: said.pop(name) for name in ("start", "maximum", "step", "tolerance") if name in said
    }
    settings = SearchSettings(public=public, rule=_rule(method, numbers), seed=seed, **said)
    file = out or Path("runs") / f"search-{settings.data.replace(':', '-').replace('/', '-')}.json"
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

    with working_in(file.parent, lambda: f"the same command goes on from {file}"):
        trace = Trace.open(file, settings)
        if trace.trials:
            print_error_stream(f"going on with {file}: {len(trace.trials)} candidates were tried already")
        with search_progress(trace) as show:
            run_search(trace, partial(open_trainer, settings, data_dir), processes=processes, show=show)
    return trace


def _rule(method: str, said: dict[str, Any]) -> Any:
    from apportion.search.search_rules import RULES

    kind = RULES[validate.known("method", method, RULES)]
    for name in said.keys() - {field.name for field in fields(kind)}:
        raise InvalidArgument(name, said[name], f"the method {method} has no such number", "Leave it out")
    return kind(**said)


def _show(trace: Trace, settings: SearchSettings, file: Path, *, fit: bool, as_json: bool) -> None:
    from apportion.search import fit_decay
    from apportion.search.trace import NOTE

    console, title = (
        screen(as_json),
        f"{settings.rule.name} search on {settings.data}, z = {settings.noise_multiplier:g}",
    )
    headings = ("epoch", "clip threshold", "test accuracy", "candidates")
    table = Table(*(Column(heading, justify="right") for heading in headings), title=title)
    for epoch, threshold in enumerate(trace.thresholds, start=1):
        tried = trace.tried(1, epoch)
        score = max(trial.accuracy for trial in tried)
        table.add_row(str(epoch), f"{threshold:.4g}", f"{score:.1%}", str(len(tried)))
    console.print(table)
    first, start = trace.first_thresholds, f"{trace.content()['start']:.4g}"
    print_lines(
        console,
        f"C₀ = {start}: the first epoch, mean of {len(first)} ({', '.join(f'{one:.4g}' for one in first)}). "
        f"{len(trace.trials)} candidates in all.",
        f"As published   --recipe lin-decay --set clip.start={start}",
    )
    if fit:
        found = fit_decay(trace.thresholds)
        use = f"--recipe lin-decay --set clip.start={found.start:.4g} --set clip.power={found.power:.4g}"
        print_lines(
            console,
            f"Fit to all epochs: C_t = C₀/t^a with C₀ = {found.start:.4g} (fitted) and a = {found.power:.4g}",
            f"As fitted      {use}"
            if found.decays
            else "The recipe lin-decay takes 0 < a ≤ 1, so this one is not for it.",
        )
    print_lines(console, NOTE, f"All of them    --recipe lin-transfer --set clip.file={file}")
