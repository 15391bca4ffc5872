"""Ranks of one process that take turns, in place of torch.distributed: for audits, which look at all of them at once, and for tests.

Each rank is a thread, and one of them runs at a time, until it has to wait for the others. So global state, such as torch's generator, is
not shared by two that run, and every run is the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from apportion.errors import RankLost

Result = TypeVar("Result")


class Turns:
    """So many ranks, of which one runs at a time.

    Args:
        count: how many.
    """

    def __init__(self, count: int):
        self.count = count
        self._changed = threading.Condition()
        self._running: int | None = 0
        self._present = set(range(count))
        self._said: dict[int, Any] = {}
        self._held, self._heard = 0, list[Any]()

    def run(self, function: Callable[[Link], Result]) -> list[Result]:
        """What `function` returns on each rank. If it raises, the first error that is not about another rank is raised."""
        results: dict[int, Result] = {}
        errors: dict[int, BaseException] = {}

        def work(rank: int) -> None:
            with self._changed:
                self._changed.wait_for(lambda: self._running == rank)
            try:
                results[rank] = function(Link(self, rank))
            except BaseException as error:
                errors[rank] = error
            self._leave(rank)

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            own = [error for error in errors.values() if not isinstance(error, RankLost)]
            raise (own or list(errors.values()))[0]
        return [results[rank] for rank in range(self.count)]

    def meet(self, rank: int, value: Any) -> list[Any]:
        """What each rank says; raises if one of them has ended."""
        with self._changed:
            number = self._held
            self._said[rank] = value
            if len(self._said) == self.count:  # so all have heard what was said at the last meeting
                self._held, self._heard = number + 1, [self._said[one] for one in range(self.count)]
                self._said = {}
                return self._heard
            self._hand_on(rank)
            self._changed.wait_for(lambda: self._running == rank)
            if self._held == number:
                raise RuntimeError("a rank has ended")
            return self._heard

    def _leave(self, rank: int) -> None:
        with self._changed:
            self._present.discard(rank)
            self._hand_on(rank)

    def _hand_on(self, rank: int) -> None:
        """To the next one that can go on: it has not spoken yet, or waits for somebody who has ended."""
        order = [(rank + step) % self.count for step in range(1, self.count + 1)]
        waiting = [one for one in order if one in self._present]
        able = [one for one in waiting if one not in self._said or len(self._present) < self.count]
        self._running = next(iter(able), None)
        self._changed.notify_all()


class Link:
    """What one of them uses of torch.distributed.

    Args:
        turns: all of them.
        rank: which one this is.
    """

    def __init__(self, turns: Turns, rank: int):
        self._turns, self._rank = turns, rank

    def get_rank(self) -> int:
        return self._rank

    def get_world_size(self) -> int:
        return self._turns.count

    def get_backend(self) -> str:
        return "gloo"

    def is_initialized(self) -> bool:
        return True

    def all_gather_object(self, found: list[Any], value: Any) -> None:
        found[:] = self._turns.meet(self._rank, value)

    def all_gather(self, found: list[Tensor], value: Tensor) -> None:
        for tensor, said in zip(found, self._turns.meet(self._rank, value.clone()), strict=True):
            tensor.copy_(said)

    def broadcast_object_list(self, sent: list[Any], source: int, device: Any = None) -> None:
        sent[:] = self._turns.meet(self._rank, list(sent))[source]

    def broadcast(self, tensor: Tensor, source: int) -> None:
        tensor.copy_(self._turns.meet(self._rank, tensor.clone())[source])

    def all_reduce(self, tensor: Tensor, async_op: bool = True) -> Link:
        """The sum, in the order of the ranks."""
        first, *others = self._turns.meet(self._rank, tensor.clone())
        total = first.clone()
        for one in others:
            total += one
        tensor.copy_(total)
        return self

    def wait(self) -> None:
        """The sum is there already."""
