"""A run of several ranks in a process of its own, that a test kills: python killed_run.py FOLDER RANK RANKS MEETING resume|new."""

import sys
from datetime import timedelta

import torch
from torch import distributed

import apportion as ap

if __name__ == "__main__":
    folder, rank, ranks, meeting, resume = sys.argv[1:]
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=int(ranks), timeout=timedelta(seconds=60)
    )
    from parallel_runs import plan_of, small_model, some_records

    def tell(entry):
        print(entry.step, flush=True)

    try:
        run = ap.train(
            small_model(),
            "cross-entropy",
            some_records(),
            plan_of(steps=400, spare=200, rate=0.3),
            lr=0.1,
            storage=ap.Storage(folder, every=7, resume=resume == "resume"),
            progress=tell,
        )
    except ap.RankLost as error:
        print(f"RankLost: {error}", flush=True)
        distributed.destroy_process_group()  # gloo's threads would abort the interpreter on its way out
        sys.exit(4)
    print("done", run.steps, run.epsilon(), flush=True)
