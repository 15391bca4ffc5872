"""A bar for a search, with the time that is left; plain lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from apportion.compare.processes import time_left
from apportion.search.search import Show
from apportion.search.search_rules import Trial, best_of
from apportion.search.trace import Trace

LINES = 10
"""Trials between two lines."""


@contextmanager
def search_progress(trace: Trace) -> Iterator[Show]:
    """Yield a function that shows a trial which was added to `trace`."""
    if not sys.stderr.isatty():
        begun, started = len(trace.trials), time.monotonic()
        yield lambda trial: _print_line(trace, trial, len(trace.trials) - begun, time.monotonic() - started)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns: list[Any] = [
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}"),
        TimeRemainingColumn(compact=True),
    ]
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("search", total=expected_trials(trace), completed=len(trace.trials), facts="")

        def show(trial: Trial) -> None:
            done, total = len(trace.trials), expected_trials(trace)
            progress.update(task, completed=done, total=total, description=_place(trial), facts=_facts(trace, trial))

        yield show


def expected_trials(trace: Trace) -> int:
    """How many trials the whole search will have, if its other epochs are like those that are over.

    While none is over, every one is taken to be as long as it can be.
    """
    settings = trace.settings
    counts: dict[tuple[int, int], int] = {}
    for trial in trace.trials:
        counts[trial.run, trial.epoch] = counts.get((trial.run, trial.epoch), 0) + 1
    epochs = settings.epochs + settings.runs - 1
    over = list(counts.values())[: None if trace.ended else -1]
    mean = sum(over) / len(over) if over else settings.rule.most
    return max(len(trace.trials), round(sum(over) + mean * (epochs - len(over))))


def _facts(trace: Trace, trial: Trial) -> str:
    best = best_of(trace.tried(trial.run, trial.epoch))
    shown = "" if best is None else f"  best {best.threshold:.3g} ({best.accuracy:.1%})"
    return f"clip {trial.threshold:.3g}{shown}"


def _place(trial: Trial) -> str:
    return f"run {trial.run} epoch {trial.epoch}"


def _print_line(trace: Trace, trial: Trial, added: int, seconds: float) -> None:
    """A line for the first candidate that was trained, and then for every tenth."""
    if added == 1 or len(trace.trials) % LINES == 0:
        done, total = len(trace.trials), expected_trials(trace)
        count = f"candidate {done} of about {total}{time_left(added, total - done, seconds)}"
        print(f"{_place(trial)}  {count}  {_facts(trace, trial)}", file=sys.stderr, flush=True)
