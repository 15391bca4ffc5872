"""Processes that train beside each other, for studies and searches."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from apportion.errors import InvalidArgument


def process_pool(count: int, start: Callable[..., None] | None = None, *arguments: Any) -> ProcessPoolExecutor:
    """`count` processes, each of which calls `start` first. Not forked: a process that has used threads, as torch does, must not be."""
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begin, (start, arguments))


def _begin(start: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interruption ends it without a word; the parent speaks
    if start is not None:
        start(*arguments)


@contextmanager
def ends_are_told(count: int, work: str) -> Iterator[None]:
    """Say in words that one of `count` processes ended, and that the `work` can go on."""
    try:
        yield
    except BrokenProcessPool as error:
        raise InvalidArgument(
            "processes",
            count,
            "one of them ended while it trained, as happens when memory runs out",
            f"Use fewer; the same command goes on with the {work}",
        ) from error
