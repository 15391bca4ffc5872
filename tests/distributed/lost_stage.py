"""A pipelined run in a process of its own, of which a test loses one stage: python lost_stage.py FOLDER RANK kill|raise|"go on"."""

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed

import apportion as ap
from apportion.accounting.ledger import Ledger
from apportion.accounting.run_filter import RULES

LOST_IN = 4
"""The step in whose backward pass the stage is lost."""

if __name__ == "__main__":
    folder, rank, fate = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    path = folder / "ledger.sqlite"
    if rank == 0:
        Ledger.create(
            path, name="all", rule=RULES["sum"](ap.Budget(epsilon=30.0, delta=1e-4, unit=ap.Record()))
        ).close()
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2, timeout=timedelta(seconds=100)
    )
    from pipelined_runs import plan_by_stages, some_records, two_stages

    from apportion.pipeline.stage_runner import StageRunner

    steps, backward, run = [], StageRunner.backward, StageRunner.run

    def counted(runner, turn, *others):
        if not steps or steps[-1] is not others[0]:
            steps.append(others[0])
        run(runner, turn, *others)

    def losing(runner, chunk, gradient):
        if len(steps) == LOST_IN:
            if fate == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if fate == "raise":
                raise MemoryError("no room")
        return backward(runner, chunk, gradient)

    StageRunner.run, StageRunner.backward = counted, losing
    try:
        ap.pipeline.train(
            two_stages()[rank],
            "cross-entropy",
            some_records(),
            plan_by_stages(2, steps=20, rate=0.9),
            lr=0.1,
            storage=ap.Storage(ledger=path),
        )
    except ap.RankLost as error:
        print(f"RankLost: {error}", flush=True)
        sys.exit(4)
