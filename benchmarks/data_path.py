"""What it costs to draw and read the records of a step.

    python benchmarks/data_path.py                 # JSON lines
    python benchmarks/data_path.py --steps 50 --target 0.05

All runs in one thread of torch, which leaves a processor to the workers.

**In memory.** The share of a private step of the two MNIST networks that is spent on tossing a coin for each of 60,000 records and on
picking out the expected 1,024, in CPU time, as others may use the machine too. Exit code 1 if the median share of a network exceeds
the target.

**From a Dataset.** Milliseconds of a step of one of them if every record takes 0.2 ms to read, by computing (as decoding does) or by
waiting (as a disk does), in this process and with two worker processes. Steps of all kinds take turns, so that a busy machine slows all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from workloads import WORKLOADS, Workload

import apportion
from apportion.curator import curator as curator_module
from apportion.curator.randomness import Randomness
from apportion.curator.records import Records, as_records
from apportion.training.opening import open_session, require_trainable
from apportion.training.optimizers import build_optimizer
from apportion.training.session import Setup

POPULATION, NETWORKS, SLOW_NETWORK = 60_000, ("b1", "papernot"), "papernot"
SECONDS_A_RECORD, WORKERS, WARM_UP, PLANNED_STEPS = 2e-4, (0, 2), 3, 10_000


@dataclass
class Stopwatch:
    """Adds up the CPU time that is spent in what it wraps."""

    seconds: float = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            started = time.process_time()
            try:
                return function(*arguments)
            finally:
                self.seconds += time.process_time() - started

        return timed


class Slow(Dataset):
    """Records that take their time."""

    def __init__(self, inputs: Tensor, targets: Tensor, *, computing: bool):
        self._inputs, self._targets, self._computing = inputs, targets.tolist(), computing

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self._computing:
            end = time.perf_counter() + SECONDS_A_RECORD
            while time.perf_counter() < end:
                pass
        else:
            time.sleep(SECONDS_A_RECORD)
        return self._inputs[index], self._targets[index]


def stepper(workload: Workload, records: Records, workers: int = 0) -> Callable[[], None]:
    """A function that takes a private step."""
    model, loss = workload.model(), nn.CrossEntropyLoss()
    plan = apportion.plan(
        apportion.Recipe(noise=apportion.noise.Constant(multiplier=1.0)),
        budget=apportion.Budget(epsilon=1e4, delta=1e-5, unit=apportion.Record()),
        population=POPULATION,
        batch_size=workload.batch,
        steps=PLANNED_STEPS,
    )
    setup = Setup(
        model=model,
        optimizer=build_optimizer(model, "sgd", 0.01),
        records=records,
        plan=plan,
        choice=require_trainable(model, loss, records),
        execution=apportion.Execution(workers=workers),
        randomness=Randomness.fresh(),
    )
    session = open_session(setup)

    def step() -> None:
        session.apply(session.curator.answer(session.next_request(), loss))

    for _ in range(WARM_UP):
        step()
    return step


def mnist_like(workload: Workload) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return workload.inputs(POPULATION), torch.randint(workload.classes, (POPULATION,))


def in_memory(name: str, steps: int) -> dict[str, Any]:
    """The median share of coins and reading, and its range in the middle half of the steps."""
    workload, watch = WORKLOADS[name], Stopwatch()
    given = as_records(mnist_like(workload))
    step = stepper(workload, Records(len(given), watch.around(given.batch), given.example))
    original = curator_module.poisson_sample
    curator_module.poisson_sample = watch.around(original)
    try:
        taken = []
        for _ in range(steps):
            watch.seconds, started = 0.0, time.process_time()
            step()
            seconds = time.process_time() - started
            taken.append((watch.seconds / seconds, 1e3 * watch.seconds, 1e3 * seconds))
    finally:
        curator_module.poisson_sample = original
    shares, data, whole = zip(*taken, strict=True)
    low, middle, high = statistics.quantiles(shares, n=4)
    figures = {"share": middle, "share_low": low, "share_high": high}
    figures |= {"data_ms": statistics.median(data), "step_ms": statistics.median(whole)}
    return {"workload": name, "records": "tensors"} | {key: round(value, 4) for key, value in figures.items()}


def from_a_dataset(steps: int) -> list[dict[str, Any]]:
    """Milliseconds of a step for each way to be slow and each number of workers."""
    workload = WORKLOADS[SLOW_NETWORK]
    inputs, targets = mnist_like(workload)
    kinds = {("tensors", 0): stepper(workload, as_records((inputs, targets)))}
    for how in ("computing", "waiting"):
        for workers in WORKERS:
            data = Slow(inputs, targets, computing=how == "computing")
            kinds[how, workers] = stepper(workload, as_records(data), workers)
    taken: dict[tuple[str, int], list[float]] = {kind: [] for kind in kinds}
    for _ in range(steps):
        for kind, step in kinds.items():
            started = time.perf_counter()
            step()
            taken[kind].append(1e3 * (time.perf_counter() - started))
    return [
        {
            "workload": SLOW_NETWORK,
            "records": how,
            "workers": workers,
            "step_ms": round(statistics.median(taken[how, workers]), 1),
            "fastest_ms": round(min(taken[how, workers]), 1),
        }
        for how, workers in kinds
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--target", type=float, default=0.05, help="the largest share of coins and reading in memory")
    options = parser.parse_args()
    torch.set_num_threads(1)
    missed = False
    for name in NETWORKS:
        row = in_memory(name, options.steps)
        missed |= row["share"] > options.target
        print(json.dumps(row), flush=True)
    for row in from_a_dataset(options.steps):
        print(json.dumps(row), flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
