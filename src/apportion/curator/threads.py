"""How many threads work at one time: those of torch, and our own for work that is cut into blocks.

NumPy and OpenSSL let go of Python's lock, so blocks are computed side by side.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from typing import Literal

Block = tuple[int, int]
"""(first, last): the numbers from `first` on, without `last`."""


@contextmanager
def torch_threads(count: int | Literal["auto"]) -> Iterator[None]:
    """Until the end of this block torch computes with at most so many threads; "auto" stands for as many as it has."""
    import torch  # here: reports of runs, which read this module, need none

    before = torch.get_num_threads()
    if count == "auto" or count >= before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def share_blocks(start: int, count: int, most: int, work: Callable[[Iterator[Block]], None], threads: int) -> None:
    """Calls `work(blocks)` in up to `threads` threads, this one among them; `blocks` hands every block to one of them.

    Returns when all blocks are done, and never before. An error in any thread is raised here, after the others have finished
    the block that they are at. A helper that comes too late finds nothing to do; where no thread can be had, as at the end of the
    interpreter, this one does all of the work.

    Args:
        start: the first number of the first block.
        count: how many numbers all blocks have.
        most: how many one block has at most. Blocks are about equally long, and as many for each thread.
    """
    number = -(-count // most)
    if number > 1:
        number = -(-number // threads) * threads
    team = _Team(work, start, start + count, max(1, -(-count // max(1, number))))
    with suppress(RuntimeError):  # there are no threads, or none any more
        for _ in range(min(threads, number) - 1):
            _pool().submit(team.join)
    team.join()
    team.wait()


class _Team:
    """The threads that share the blocks of one task."""

    def __init__(self, work: Callable[[Iterator[Block]], None], start: int, stop: int, size: int):
        self._work, self._stop = work, stop
        self._firsts, self._size = iter(range(start, stop, size)), size
        self._changed = threading.Condition()
        self._working, self._closed = 0, False
        self._error: BaseException | None = None

    def __iter__(self) -> Iterator[Block]:
        return self

    def __next__(self) -> Block:
        with self._changed:
            first = next(self._firsts)
        return first, min(first + self._size, self._stop)

    def join(self) -> None:
        """Work until no block is left."""
        with self._changed:
            if self._closed:
                return
            self._working += 1
        try:
            self._work(self)
        except BaseException as error:
            with self._changed:
                self._error, self._firsts = self._error or error, iter(range(0))
        finally:
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    def wait(self) -> None:
        """Until nobody works any more; nobody can join then."""
        with self._changed:
            self._changed.wait_for(lambda: not self._working)
            self._closed = True
        if self._error is not None:
            raise self._error


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="apportion")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork: the child makes its own
