"""What people see: a table of results, where to look, and what to try next."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from apportion.data import KNOWN
from apportion.errors import InvalidArgument
from apportion.reporting.formatting import format_epsilon
from apportion.reporting.result import Results, RunResult
from apportion.reporting.series import Series, group_series
from apportion.training.folders import tidied

_people = Console(stderr=True, highlight=False)
TAKEN, RESERVED = "of the steps taken", "reserved, with spare steps"
"""The two ε of a run: spare steps for crashes are part of the plan, and so of the guarantee, whether they are taken or not."""


def screen(as_json: bool = False) -> Console:
    """Where a person looks: not at standard output if a program reads JSON there."""
    return Console(stderr=as_json, highlight=False)


def print_lines(console: Console, *lines: str) -> None:
    """Print lines as they are, however long."""
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)


def print_error_stream(line: str) -> None:
    """Tell a person something without disturbing what a script reads."""
    if line:
        print_lines(_people, " ".join(line.splitlines()))


def writable_folder(folder: Path) -> Path:
    """Make the folder, or say at once that it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"it cannot be written: {error.strerror}"
        raise InvalidArgument("out", str(folder), reason, "Choose another folder") from error
    return folder


@contextmanager
def working_in(folder: Path, left_behind: Callable[[], str]) -> Iterator[None]:
    """Make `folder` for the body. If that raises, an empty one is removed; if it is interrupted, a person is told what is left."""
    with tidied(folder):
        writable_folder(folder)
        try:
            yield
        except KeyboardInterrupt:
            print_error_stream(f"interrupted: {left_behind()}")
            raise


def warn_without_privacy(data: str) -> None:
    """Say what training without privacy on one's own data means."""
    if data not in KNOWN:
        means = "its results reveal the records and must not be published"
        print_error_stream(f"warning: non-private training on {data}: {means}")


def point_to_problems(place: Path) -> None:
    """Say that the owner's file is there, whatever is in it, and what must not be done with it."""
    print_error_stream(
        f"{place} says exactly which records could not be used. It is for the owner of the data: do not publish it, and do "
        "not change settings by it without counting that as a private decision."
    )


def write_results(results: Results, folder: Path) -> None:
    """Replace results.json in `folder`, as a whole."""
    from apportion.training.checkpoint import replace_file

    text = json.dumps(results.to_json(), indent=1, ensure_ascii=False)
    replace_file(folder / "results.json", (text + "\n").encode())


def show_results(results: Results, folder: Path, *, as_json: bool) -> None:
    """Write results.json and report.html into `folder`, print the table, say where to look and what to try next."""
    from apportion.reporting import write_report

    write_results(results, folder)
    write_report(results, folder / "report.html")
    console = screen(as_json)
    spares = any(run.epsilon_spent != run.epsilon for run in results.runs if run.epsilon_spent is not None)
    series = group_series(results.runs)
    measure = series[0].measure
    rows = [
        {
            "recipe": escape(one.recipe),
            "ε reserved" if spares else "ε spent": "no privacy"
            if one.epsilon is None
            else f"{format_epsilon(one.epsilon)} of {one.target:g}",
            "δ": "" if one.runs[0].delta is None else f"{one.runs[0].delta:g}",
            measure.title: _show_score(one),
            "steps": str(one.runs[0].steps),
            "seconds": "" if one.seconds is None else f"{one.seconds:.1f}",
        }
        for one in series
    ]
    shown = [
        heading for heading in rows[0] if any(row[heading] for row in rows)
    ]  # nothing measured, no time told: no column
    columns = (Column(heading, justify="left" if heading == "recipe" else "right") for heading in shown)
    table = Table(*columns, title=escape(results.title or ""))
    for row in rows:
        table.add_row(*(row[heading] for heading in shown))
    console.print(table)
    if any(run.epsilon is not None and not run.private for run in results.runs):
        console.print("A seed was given: these runs are reproducible and NOT private.")
    print_lines(console, f"Look at   {folder / 'report.html'}   (numbers: {folder / 'results.json'})")
    print_lines(console, *next_steps(results.runs[-1]))


def _show_score(one: Series) -> str:
    if one.score is None:
        return "no score" if one.measure.held_out else ""
    spread = "" if one.spread is None else f" ± {one.measure.show_spread(one.spread)}"
    return f"{one.measure.show(one.score)}{spread}".replace("\u00a0", " ")


def next_steps(run: RunResult) -> list[str]:
    """What to try after this run; of one's own data, what a further run means."""
    if run.data not in KNOWN:
        return [_relate_further_runs(run.details.get("data_set"))]
    return [
        f"Try next  apportion compare --data {run.data} --epsilon 1 --recipe abadi --recipe lin-decay",
        f"          apportion train --data {run.data} --recipe lin-decay --epsilon 3 --delta 1e-5 --unit record "
        f"--population {run.population}",
        "          apportion data list   and   apportion --help",
    ]


def _relate_further_runs(data_set: Any) -> str:
    """What a further run on the same records means, with a shared ledger and without."""
    if isinstance(data_set, Mapping):
        return (
            f"Further runs on {data_set['name']} are admitted while all of them together stay within ε = {data_set['limit_epsilon']:g}, "
            f"δ = {data_set['limit_delta']:g}, the limit of its ledger. Left: {data_set['left']}."
        )
    return (
        "Each further run on the same records spends more: together they cost more than one, at most the sum of their ε and of their δ. "
        "A shared ledger keeps all of them within one limit, often for less: apportion ledger limit --help"
    )
