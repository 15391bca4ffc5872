"""Training in several processes at once: how they are started, why each has one thread, and how long the work still takes."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

import torch

from apportion.compare.networks import MODELS, Model
from apportion.errors import InvalidArgument


def process_pool(count: int, start: Callable[..., None] | None = None, *arguments: Any) -> ProcessPoolExecutor:
    """`count` processes that know the models of this one; each calls `start` first.

    They are spawned, not forked: a process that has used threads, as torch does, must not be forked.
    """
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count, context, _begin, (dict(MODELS), start, arguments))


def _begin(models: Mapping[str, Model], start: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interruption ends it silently; the parent reports it
    MODELS.update(models)
    if start is not None:
        start(*arguments)


@contextmanager
def explain_broken_pool(count: int, work: str) -> Iterator[None]:
    """Report that one of `count` processes ended, and that the same command continues the `work`."""
    try:
        yield
    except BrokenProcessPool as error:
        reason = "one of them ended while it trained, as happens when memory runs out"
        fix = f"Use fewer; the same command goes on with the {work}"
        raise InvalidArgument("processes", count, reason, fix) from error


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: the order of a sum depends on the number of threads, and with it the last bits of a seeded result."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def time_left(done: int, to_come: int, seconds: float) -> str:
    """ ", about 12 min left", if the rest proceeds at the pace of these `seconds`; empty if nothing is left."""
    if to_come <= 0:
        return ""
    left = seconds / done * to_come
    amount = f"{left:.0f} s" if left < 100 else f"{left / 60:.0f} min" if left < 100 * 60 else f"{left / 3600:.1f} h"
    return f", about {amount} left"
