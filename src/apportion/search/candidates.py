"""Trains candidates, several at a time: in this process, or in others with one thread each. The results are the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from apportion import validate
from apportion.compare.processes import explain_broken_pool, process_pool


@dataclass(frozen=True)
class Outcome:
    """The state after an epoch, and its accuracy on the evaluation set."""

    state: bytes
    accuracy: float


@dataclass(frozen=True)
class Candidate:
    """An epoch to be trained: from which state, with which threshold, and the seed of its batches and noise.

    A state is bytes, which cannot change: every candidate unpacks a model *and* an optimiser of its own.
    """

    state: bytes
    threshold: float
    seed: int


class Trainer(Protocol):
    """One epoch of training. The same arguments must give the same outcome in every process."""

    def initial(self, seed: int) -> bytes:
        """The state before the first epoch."""
        ...

    def train_epoch(self, state: bytes, threshold: float, seed: int) -> Outcome: ...


class Candidates:
    """Use it as a context, which ends the processes.

    Args:
        make_trainer: makes the trainer, in each process anew; it must be picklable if there are several.
        processes: how many candidates are trained at one time.
    """

    def __init__(self, make_trainer: Callable[[], Trainer], processes: int):
        self._make = make_trainer
        self.processes = validate.whole("processes", processes, "they train the candidates", "Use 1 to have no others")
        self._trainer = make_trainer()  # here too: what is wrong with model or data is found at once
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Candidates:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def initial(self, seed: int) -> bytes:
        return self._trainer.initial(seed)

    def train(self, candidates: Sequence[Candidate]) -> list[Outcome]:
        """The outcomes, in the order of the candidates."""
        if self.processes == 1 or len(candidates) == 1:
            return [_train(self._trainer, candidate) for candidate in candidates]
        if self._pool is None:
            self._pool = process_pool(self.processes, _start, self._make)
        with explain_broken_pool(self.processes, "search"):
            return list(self._pool.map(_train_there, candidates))


def _train(trainer: Trainer, candidate: Candidate) -> Outcome:
    return trainer.train_epoch(candidate.state, candidate.threshold, candidate.seed)


_trainer: Trainer | None = None
"""In a process of the pool: its trainer."""


def _start(make_trainer: Callable[[], Trainer]) -> None:
    global _trainer
    _trainer = make_trainer()


def _train_there(candidate: Candidate) -> Outcome:
    assert _trainer is not None
    return _train(_trainer, candidate)
