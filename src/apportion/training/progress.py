"""A bar for long runs, with the budget spent so far; plain lines where there is no terminal, or no rich to draw the bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from apportion.training.history import Entry

Show = Callable[[Entry], None]
LINES = 5


@contextmanager
def progress_bar(description: str, steps: int, budget: float, *, enabled: bool | None = None) -> Iterator[Show]:
    """Yield a function that shows an entry. `enabled=None`: only where a person looks at a terminal."""
    if enabled is None:
        enabled = sys.stderr.isatty()
    if not enabled:
        yield lambda entry: None
        return
    facts = {"ε": f"0.00/{budget:g}"}
    if not sys.stderr.isatty() or find_spec("rich") is None:
        yield lambda entry: _print_line(description, entry, steps, _facts(facts, entry, budget))
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns: list[Any] = [
        TextColumn("{task.description:<12}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}"),
        TimeRemainingColumn(compact=True),
    ]
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(description, total=steps, facts="")

        def show(entry: Entry) -> None:
            progress.update(task, completed=entry.step, facts=_facts(facts, entry, budget))

        yield show


def _facts(known: dict[str, str], entry: Entry, budget: float) -> str:
    """What is known after `entry`; values that were not computed at this step keep their last one."""
    if entry.noise_multiplier is not None:  # a selection has neither
        known["clip"] = f"{entry.clip[0]:.3g}"
        known["noise"] = f"{entry.noise_multiplier:.3g}"
    if entry.epsilon is not None:
        known["ε"] = f"{entry.epsilon:.2f}/{budget:g}"
    if entry.metric is not None and entry.score is not None:
        known[entry.metric] = f"{entry.score:.1%}" if entry.metric == "accuracy" else f"{entry.score:.4g}"
    return "  ".join(f"{name} {value}" for name, value in known.items())


def _print_line(description: str, entry: Entry, steps: int, facts: str) -> None:
    """About five lines a run."""
    if entry.step == steps or entry.step % max(1, steps // LINES) == 0:
        print(f"{description:<12} step {entry.step}/{steps}  {facts}", file=sys.stderr, flush=True)
