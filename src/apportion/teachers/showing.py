"""How far teachers and queries have come: a bar in a terminal, otherwise a few lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from apportion.training.progress import LINES


@contextmanager
def show_progress(what: str, total: int, enabled: bool | None) -> Iterator[Callable[[str], None]]:
    """Yield a function that counts one more, with a few words. `enabled=None`: only where a person looks at a terminal."""
    terminal = sys.stderr.isatty()
    if not (terminal if enabled is None else enabled):
        yield lambda words: None
        return
    done = 0
    if not terminal or find_spec("rich") is None:

        def print_line(words: str) -> None:
            nonlocal done
            done += 1
            if done == total or done % max(1, total // LINES) == 0:
                print(f"{what} {done}/{total}  {words}".rstrip(), file=sys.stderr, flush=True)

        yield print_line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn())
    words_column = TextColumn("{task.fields[words]}")
    with Progress(*columns, words_column, TimeRemainingColumn(compact=True), console=Console(stderr=True)) as bar:
        shown = bar.add_task(what, total=total, words="")
        yield lambda words: bar.update(shown, advance=1, words=words)
