"""Worker processes that read records ahead: torch's `DataLoader` runs them, the curator tells them what to read.

The coins are tossed in the main process. Workers start before the draw whose records they read, so that they inherit none of its
random bits, and a generator that they inherit refuses to work in another process.
"""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import signal_handling

from apportion.curator.reader import Reader, Reading, Task
from apportion.errors import ApportionError, InvalidArgument, WrongOrder


class _WorkerDataset(Dataset[bytes]):
    """What runs in a worker. It packs batches itself: if the queue of the loader did and failed, the reader would wait forever."""

    def __init__(self, reader: Reader):
        self._reader = reader

    def __getitem__(self, task: Task) -> bytes:
        found = self._reader(task)
        # A batch is sent as shared memory, which takes file descriptors: too many if every record comes alone.
        return bytes(ForkingPickler.dumps(found)) if len(found.pieces) == 1 else pickle.dumps(found)


class Workers:
    """Processes that read ahead, kept from draw to draw until `close`. They end too when this object or the program does.

    Args:
        reader: what each of them does.
        count: how many.
    """

    def __init__(self, reader: Reader, count: int):
        self._tasks: list[Task] = []
        self._round = 0
        # The loader draws a number when it starts: from a generator of its own, as torch's belongs to the person and to the model.
        self._loader: DataLoader[bytes] = DataLoader(
            _WorkerDataset(reader),
            sampler=self._tasks,
            batch_size=None,
            num_workers=count,
            persistent_workers=True,
            prefetch_factor=2,
            generator=torch.Generator(),
        )
        self._end = weakref.finalize(self, _end_processes, self._loader)
        first = Task(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.uint64))
        try:
            works = all(found.pieces for found in self.read([first] * count))
        except ApportionError:
            works = False
        if not works:
            self.close()
            raise InvalidArgument(
                "workers",
                count,
                "a worker process cannot read the first record of the data set, or cannot be given the data set",
                "Open files and devices in __getitem__ instead of __init__, or use workers=0",
            )

    def read(self, tasks: list[Task]) -> Iterator[Reading]:
        """What the reader makes of these tasks, in order."""
        if self.closed:
            raise WrongOrder("the worker processes were closed")
        self._round += 1
        mine = self._round
        self._tasks[:] = tasks
        failed = False
        try:
            for packed in self._loader:
                yield pickle.loads(packed)
                if self._round != mine:
                    raise WrongOrder(
                        "a draw was left for another one: with worker processes one draw is read at a time"
                    )
        except ApportionError:
            raise
        except Exception:
            failed = True
        if failed:  # outside of `except`: the error of a worker may name a record
            try:
                self.close()
            except RuntimeError:  # from the handler below, just before `close` could put it out of action
                self.close()
            raise ApportionError(
                "a worker process that reads records ended or could not hand them over. The charge of this step is spent. "
                "Is memory short, also shared memory (/dev/shm)? Use fewer workers, a smaller micro_batch or workers=0."
            )

    @property
    def closed(self) -> bool:
        return not self._end.alive

    def close(self) -> None:
        """End the processes."""
        _end_processes(self._loader)
        self._end.detach()


def _end_processes(loader: DataLoader[bytes]) -> None:
    iterator: Any = loader._iterator
    if iterator is None:
        return
    if iterator._worker_pids_set:
        # torch's handler of SIGCHLD raises when it hears of a killed worker, wherever Python is then. Here we know already.
        signal_handling._remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False
    iterator._shutdown_workers()
