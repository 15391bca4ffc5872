"""The time before the first step, in CPU seconds of a fresh process: what the plan, checks, proofs, probes and the account take.

    python benchmarks/opening_time.py           # half a minute
    python benchmarks/opening_time.py --json    # one line

It is what `apportion.train` does before it reads the first batch, with its imports; of these torch's optimisers make the most, which
import its compiler. `import torch`, the model and its records are there when the clock starts. `again` is the same in the same process,
once what is imported on the way is there. With one thread CPU time hardly depends on what else runs on the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from more_workloads import MORE
from torch import nn

NAMES = ("table", "gpt2-small-ish")


def open_run(name: str) -> dict[str, float]:
    """CPU seconds until the first step could be taken, by what they are spent on."""
    workload = MORE[name]
    model, data, loss = workload.model(), workload.records(), nn.CrossEntropyLoss()
    with nullcontext() if workload.within is None else workload.within(model):
        times = [time.process_time()]
        import apportion as ap
        from apportion.curator.randomness import Randomness
        from apportion.curator.records import as_records
        from apportion.training.opening import open_session, require_trainable
        from apportion.training.optimizers import build_optimizer
        from apportion.training.preflight import expected_domain
        from apportion.training.session import Setup

        times.append(time.process_time())
        plan = ap.plan(
            "abadi",
            budget=ap.Budget(epsilon=8.0, delta=1e-5, unit=ap.Record()),
            population=workload.population,
            batch_size=workload.batch,
            steps=100,
        )
        times.append(time.process_time())
        given = as_records(data)
        choice = require_trainable(model, loss, given)
        domain = expected_domain(None, model, loss, given)
        times.append(time.process_time())
        optimizer = build_optimizer(model, "sgd", 0.1)
        times.append(time.process_time())
        randomness = Randomness.choose(None)
        open_session(Setup(model, optimizer, given, plan, choice, ap.Execution(), randomness, domain=domain))
        times.append(time.process_time())
    parts = zip(("import", "plan", "model", "optimizer", "session"), times[:-1], times[1:], strict=True)
    return {"all": times[-1] - times[0]} | {part: after - before for part, before, after in parts}


def measure(name: str) -> dict[str, dict[str, float]]:
    """In a process of its own."""
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, Path(__file__).resolve(), "--one", name]
    run = subprocess.run(command, env=os.environ | one_thread, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, dict[str, float]] = json.loads(run.stdout.splitlines()[-1])
    return found


def main() -> None:
    if "--one" in sys.argv:
        torch.set_num_threads(1)
        print(json.dumps({"fresh": open_run(sys.argv[-1]), "again": open_run(sys.argv[-1])}))
        return
    found = {name: measure(name) for name in NAMES}
    if "--json" in sys.argv:
        print(json.dumps(found))
        return
    for name, runs in found.items():
        for which, seconds in runs.items():
            print(f"{name}, {which}:", ", ".join(f"{part} {spent:.2f}" for part, spent in seconds.items()))


if __name__ == "__main__":
    main()
