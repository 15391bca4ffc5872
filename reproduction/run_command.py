"""`python -m reproduction run`: the cells of a published table, run once and kept."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from apportion.cli import options
from apportion.cli.output import print_error_stream, writable_folder
from apportion.compare.processes import time_left
from apportion.errors import InvalidArgument
from apportion.reporting.result import RunResult
from reproduction.folders import RESULTS, ResultsFolder, short
from reproduction.study import StudyResults, open_study, run_study
from reproduction.study import recheck as run_again
from reproduction.study.paper_experiment import Cell

Show = Callable[[Cell, RunResult], None]


def run(
    study: Annotated[str, typer.Argument(help="A name from `python -m reproduction list`, or a TOML file.")],
    only: Annotated[
        str, typer.Option(help="Only cells whose 'experiment: recipe, seed' contains this text.", show_default=False)
    ] = "",
    processes: Annotated[
        int | None,
        typer.Option(help="Cells run at one time; changes no result.", show_default="one for each core"),
    ] = None,
    recheck: Annotated[
        int | None,
        typer.Option(help="Run so many kept cells again and compare them, to the last bit.", show_default=False),
    ] = None,
    data_dir: options.DataDir = None,
    results: ResultsFolder = RESULTS,
    as_json: options.Json = False,
) -> None:
    """Run the cells of a study that are missing, keep each as it ends, and print them beside the published figures.

    After an interruption the same command continues. With --recheck the exit code is 1 if a kept cell came out differently.

    Example: python -m reproduction run lin_table_2 --only "MNIST, ε = 2.93: papernot"
    """
    found = open_study(study)
    if not any(only in cell.title for cell in found.cells) and only:
        example = found.cells[0].title if found.cells else "none"
        raise InvalidArgument("only", only, "no cell is called so", f"Use a part of a name such as {example!r}")
    kept = StudyResults.open(found, writable_folder(results) / f"{found.name}.json")
    _announce(kept, only if recheck is None else None)
    workers = (os.cpu_count() or 1) if processes is None else processes
    if recheck is not None:
        with _progress("recheck", min(recheck, len(kept.runs))) as show:
            findings = run_again(kept, recheck, only=only, processes=workers, data_dir=data_dir, show=show)
        _show_findings(findings, as_json=as_json)
        raise typer.Exit(0 if all(finding["same"] for finding in findings) else 1)
    try:
        with _progress(found.name, sum(only in cell.title for cell in kept.missing)) as show:
            run_study(kept, only=only, processes=workers, data_dir=data_dir, show=show)
    except KeyboardInterrupt:
        count = f"{len(kept.runs)} of {len(found.cells)} cells are kept"
        print_error_stream(f"interrupted: {count}; the same command goes on")
        raise
    _show_results(kept, as_json=as_json)


def _announce(kept: StudyResults, only: str | None) -> None:
    """Say what is kept, and which of the cells that contain `only` have to be computed again."""
    for cell in kept.changed:
        if only is not None and only in cell.title:
            print_error_stream(f"{cell.title}: its settings have changed, so it is computed again")
    count = len(kept.study.cells)
    print_error_stream(
        f"{kept.study.title}: {count - len(kept.missing)} of {count} cells are kept in {short(kept.path)}"
    )


def _show_results(kept: StudyResults, *, as_json: bool) -> None:
    for (experiment, recipe, seed), reason in kept.refused.items():
        print_error_stream(f"{experiment}: {recipe}{'' if seed is None else f', seed {seed}'}: refused: {reason}")
    for data, reason in kept.without_data.items():
        print_error_stream(f"{data}: its cells were left out, the others were run: {reason}")
    content = kept.content()
    for reason, count in Counter(entry["reason"] for entry in content["not_run"]).items():
        print_error_stream(f"without a result: {count}, {reason}")
    if content["cells"]:
        _show_cells(content, as_json=as_json)
    if as_json:
        typer.echo(json.dumps({key: value for key, value in content.items() if key != "runs"}))
    elif content["cells"]:
        typer.echo(f"Look at   apportion report {short(kept.path)}")


@contextmanager
def _progress(name: str, total: int) -> Iterator[Show]:
    """A bar over the cells in a terminal; in a log a line for each, with the time that is left."""
    console, started, done = Console(stderr=True, highlight=False), time.monotonic(), itertools.count(1)
    columns: list[Any] = [
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
    ]
    with Progress(*columns, console=console, disable=not console.is_terminal or not total) as progress:
        task = progress.add_task(name, total=total)

        def show(cell: Cell, run: RunResult) -> None:
            score = "" if run.test_accuracy is None else f"{run.test_accuracy:.2%}, "
            spent = "no privacy" if run.epsilon is None else f"ε = {run.epsilon:.3f}"
            line = f"{cell.title}: {score}{spent}, {run.seconds:.1f} s"
            if not console.is_terminal:
                ended = next(done)
                line += f"  ({ended} of {total}{time_left(ended, total - ended, time.monotonic() - started)})"
            console.print(line, markup=False, soft_wrap=True)
            progress.advance(task)

        yield show


def _show_cells(content: dict[str, Any], *, as_json: bool) -> None:
    table = Table(title=escape(content["title"]))
    for heading in ("experiment", "recipe", "true ε", "its claim", "accuracy", "printed", "difference"):
        table.add_column(heading, justify="left" if heading in ("experiment", "recipe") else "right")
    for cell in content["cells"]:
        deviation = cell["test_accuracy_std"]
        table.add_row(
            escape(cell["experiment"]),
            escape(cell["recipe"]) + (f" (control of {escape(cell['control_of'])})" if cell["control_of"] else ""),
            "none" if cell["epsilon"] is None else f"{cell['epsilon']:.3f}",
            "" if cell["paper_epsilon"] is None else f"{cell['paper_epsilon']:g}",
            _percent(cell["test_accuracy"]) + ("" if deviation is None else f" ± {100 * deviation:.2f}"),
            _percent(cell["paper_accuracy"]),
            "" if cell["difference"] is None else f"{100 * cell['difference']:+.2f}",
        )
    Console(stderr=as_json, highlight=False).print(table)


def _show_findings(findings: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"recheck": findings}))
        return
    for finding in findings:
        seed = "" if finding["seed"] is None else f", seed {finding['seed']}"
        verdict = "exactly the same" if finding["same"] else f"DIFFERENT ({_difference(finding)})"
        typer.echo(f"{finding['experiment']}: {finding['recipe']}{seed}: {verdict}")
    if not all(finding["same"] for finding in findings):
        print_error_stream(
            "Only the same kind of processor with the same versions of the libraries repeats a run to the last bit. "
            "Elsewhere ε agrees to about eleven digits."
        )


def _difference(finding: dict[str, Any]) -> str:
    parts = []
    if finding["test_accuracy"] is not None:
        parts.append(
            f"accuracy {_percent(finding['test_accuracy_before'])} then, {_percent(finding['test_accuracy'])} now"
        )
    if finding["epsilon"] is not None:
        parts.append(f"ε {finding['epsilon_before']:.15g} then, {finding['epsilon']:.15g} now")
    return "; ".join(parts)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f} %"
