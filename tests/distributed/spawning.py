"""Processes with an initialised gloo group, for tests: started once, given many functions to run together."""

import multiprocessing
import os
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed

SECONDS = 120
PRELOADED = ["torch._dynamo", "torch.distributed.fsdp", "apportion.training.train", "apportion.pipeline.stage_vetting"]
"""Imported once, before the first rank is there; that takes longer than most of what ranks do. Nothing is run by then, and no thread."""


class Failed(Exception):
    """What the ranks raised, as (name of the type, text) or None for each."""

    def __init__(self, errors):
        super().__init__("\n".join(f"rank {rank}: {error}" for rank, error in enumerate(errors) if error))
        self.errors = errors


class Team:
    """R ranks that run a function together: `function(rank, *arguments)`, which must be importable."""

    def __init__(self, ranks):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._meeting = tempfile.TemporaryDirectory()
        place = Path(self._meeting.name) / "meeting"
        self._pipes, self.processes = [], []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, ranks, str(place)), daemon=True)
            process.start()
            self._pipes.append(ours)
            self.processes.append(process)

    def run(self, function, *arguments):
        """What each rank returns; `Failed` with what each raised, if any did."""
        for pipe in self._pipes:
            pipe.send((function, arguments))
        found = []
        for rank, pipe in enumerate(self._pipes):
            assert pipe.poll(SECONDS), f"rank {rank} hangs"
            try:
                found.append(pipe.recv())
            except EOFError:
                found.append((None, ("Killed", f"rank {rank} was killed", "")))
        if any(error for _, error in found):
            raise Failed([error for _, error in found])
        return [value for value, _ in found]

    def close(self):
        for process in self.processes:
            process.kill()
            process.join()
        self._meeting.cleanup()


def _serve(pipe, rank, ranks, place):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    limit = timedelta(seconds=SECONDS)
    distributed.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=ranks, timeout=limit)
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((function(rank, *arguments), None))
        except BaseException as error:
            pipe.send((None, (type(error).__name__, str(error), traceback.format_exc())))
