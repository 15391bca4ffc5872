"""`apportion compare FILE` for a study: the cells of a published table, run once and kept."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from apportion.cli.output import print_error_stream, writable_folder
from apportion.compare.remaining import time_left

if TYPE_CHECKING:
    from reproduction.study import Study
    from reproduction.study.cell import Cell


def run_study_file(
    found: Study,
    folder: Path,
    *,
    only: str | None,
    processes: int | None,
    recheck: int | None,
    data_dir: Path | None,
    as_json: bool,
) -> None:
    """Run what is missing, or run kept cells again; print the table, and with `as_json` the content of the file."""
    from apportion.errors import InvalidArgument
    from reproduction.study import StudyResults, run_study
    from reproduction.study import recheck as run_again

    if not any((only or "") in cell.title for cell in found.cells) and only is not None:
        example = found.cells[0].title if found.cells else "none"
        raise InvalidArgument("only", only, "no cell is called so", f"Use a part of a name such as {example!r}")
    path = writable_folder(folder) / f"{found.name}.json"
    results = StudyResults.open(found, path)
    missing, count = results.missing, len(found.cells)
    for cell in results.changed if recheck is None else ():
        if (only or "") in cell.title:
            print_error_stream(f"{cell.title}: its settings have changed, so it is computed again")
    print_error_stream(f"{found.title}: {count - len(missing)} of {count} cells are kept in {path}")
    workers = (os.cpu_count() or 1) if processes is None else processes
    if recheck is not None:
        with _progress("recheck", min(recheck, count - len(missing))) as show:
            findings = run_again(results, recheck, only=only or "", processes=workers, data_dir=data_dir, show=show)
        _show_findings(findings, as_json=as_json)
        raise typer.Exit(0 if all(finding["same"] for finding in findings) else 1)
    try:
        with _progress(found.name, sum((only or "") in cell.title for cell in missing)) as show:
            run_study(results, only=only or "", processes=workers, data_dir=data_dir, show=show)
    except KeyboardInterrupt:
        print_error_stream(f"interrupted: {len(results.runs)} of {count} cells are kept; the same command goes on")
        raise
    for (experiment, recipe, seed), reason in results.refused.items():
        print_error_stream(f"{experiment}: {recipe}{'' if seed is None else f', seed {seed}'}: refused: {reason}")
    for data, reason in results.without_data.items():
        print_error_stream(f"{data}: its cells were left out, the others were run: {reason}")
    content = results.content()
    for reason, count in Counter(entry["reason"] for entry in content["not_run"]).items():
        print_error_stream(f"without a result: {count}, {reason}")
    if content["cells"]:
        _show_cells(content, as_json=as_json)
    if as_json:
        typer.echo(json.dumps({key: value for key, value in content.items() if key != "runs"}))
    elif content["cells"]:
        typer.echo(f"Look at   apportion report {path}")


@contextmanager
def _progress(name: str, total: int) -> Iterator[Callable[[Cell, dict[str, Any]], None]]:
    """A bar over the cells in a terminal, and a line for each in a log, with the time that is left."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

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

        def show(cell: Cell, run: dict[str, Any]) -> None:
            score = "" if run.get("test_accuracy") is None else f"{run['test_accuracy']:.2%}, "
            spent = "no privacy" if run["epsilon"] is None else f"ε = {run['epsilon']:.3f}"
            line = f"{cell.title}: {score}{spent}, {run['seconds']:.1f} s"
            if not console.is_terminal:
                ended = next(done)
                line += f"  ({ended} of {total}{time_left(ended, total - ended, time.monotonic() - started)})"
            console.print(line, markup=False, soft_wrap=True)
            progress.advance(task)

        yield show


def _show_cells(content: dict[str, Any], *, as_json: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

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
        verdict = "exactly the same" if finding["same"] else "DIFFERENT"
        scores = f"{_percent(finding['test_accuracy_before'])} then, {_percent(finding['test_accuracy'])} now"
        typer.echo(f"{finding['experiment']}: {finding['recipe']}, seed {finding['seed']}: {verdict} ({scores})")


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f} %"
