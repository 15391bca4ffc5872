"""A private step of one and of two processes, against DistributedDataParallel with the same settings, on gloo.

    python benchmarks/scaling.py                     # JSON lines; two cores, a quiet machine
    python benchmarks/scaling.py --only papernot --rounds 9 --json benchmarks/scaling.json

Every process has one thread. In a group of R processes the two engines take turns, A B A B, so that a slow moment hits both; a turn is a
few steps between two barriers. `overhead` is ours over DistributedDataParallel (of one process: plain SGD), median of the turns' ratios;
`growth` is the overhead of two processes over that of one, which should be at most 1.15. `bytes` are those of the tensors handed to
collectives in a step, ours over theirs, which should be at most 1.02. `peak` is the largest memory of a process that runs one engine alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from peers import LEARNING_RATE, MULTIPLIER, RATE, THRESHOLD
from torch import distributed, nn
from torch.nn import functional
from workloads import WORKLOADS, Workload

import apportion as ap
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.distributed import find_ranks
from apportion.training.opening import open_session, require_trainable
from apportion.training.optimizers import build_optimizer
from apportion.training.session import Setup

DEFAULT = ("papernot", "mlp", "wrn", "transformer")
GROWTH, BYTES = 1.15, 1.02
STEPS = 100_000
_all_reduce = distributed.all_reduce


class Parallel:
    """DistributedDataParallel, not private; every rank draws from its part of the records."""

    def __init__(self, workload: Workload, rank: int, ranks: int):
        inputs, targets = workload.records()
        self._inputs, self._targets, self._scale = inputs[rank::ranks], targets[rank::ranks], ranks / workload.batch
        model = workload.model()
        self._model = nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=LEARNING_RATE)
        self.bytes = 0
        if ranks > 1:
            self._model.register_comm_hook(self, _count)

    def step(self) -> None:
        chosen = (torch.rand(len(self._inputs)) < RATE).nonzero().squeeze(1)
        self._optimizer.zero_grad()
        outputs = self._model(self._inputs.index_select(0, chosen))
        loss = functional.cross_entropy(outputs, self._targets.index_select(0, chosen), reduction="sum")
        (loss * self._scale).backward()
        self._optimizer.step()


def _count(state, bucket):  # without annotations, which DistributedDataParallel compares
    """What DistributedDataParallel does if no hook is given, counted."""
    tensor = bucket.buffer()
    state.bytes += tensor.nbytes
    ranks = distributed.get_world_size()
    work = _all_reduce(tensor.div_(ranks), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


class Private:
    """Ours, with what `apportion.train` is made of, in memory as the other."""

    def __init__(self, workload: Workload, rank: int, ranks: int):
        model, loss = workload.model(), nn.CrossEntropyLoss()
        records, execution = as_records(workload.records()), ap.Execution()
        plan = ap.plan(
            ap.Recipe(clip=ap.clip.Fixed(THRESHOLD), noise=ap.noise.Constant(multiplier=MULTIPLIER)),
            budget=ap.Budget(epsilon=1e4, delta=1e-5, unit=ap.Record()),
            population=workload.population,
            sample_rate=RATE,
            steps=STEPS,
        )
        setup = Setup(
            model=model,
            optimizer=build_optimizer(model, "sgd", LEARNING_RATE),
            records=records,
            plan=plan,
            choice=require_trainable(model, loss, records, execution),
            execution=execution,
            randomness=Randomness.choose(None, rank),
            ranks=find_ranks(),
        )
        self._session, self._loss, self.bytes = open_session(setup), loss, 0
        if ranks > 1:
            self._count_bytes()

    def _count_bytes(self) -> None:
        for name in ("all_reduce", "all_gather"):
            original = getattr(distributed, name)

            def counted(first: Any, *others: Any, original: Any = original, **options: Any) -> Any:
                self.bytes += sum(one.nbytes for one in first) if isinstance(first, list) else first.nbytes
                return original(first, *others, **options)

            setattr(distributed, name, counted)

    def step(self) -> None:
        session = self._session
        session.apply(session.curator.answer(session.next_request(), self._loss))


ENGINES = {"ddp": Parallel, "apportion": Private}


def turn(engine: Parallel | Private, steps: int, ranks: int) -> float:
    """Seconds a step, between two barriers."""
    if ranks > 1:
        distributed.barrier()
    started = time.perf_counter()
    for _ in range(steps):
        engine.step()
    if ranks > 1:
        distributed.barrier()
    return (time.perf_counter() - started) / steps


def serve(pipe: Any, rank: int, ranks: int, place: str, name: str, engines: list[str], rounds: int) -> None:
    """One process: times and bytes of the engines, in turns, and its largest memory."""
    torch.set_num_threads(1)
    if ranks > 1:
        distributed.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=ranks)
    workload = WORKLOADS[name]
    built = {kind: ENGINES[kind](workload, rank, ranks) for kind in engines}
    once = max(turn(engine, 2, ranks) for engine in built.values())
    if ranks > 1:
        longest = torch.tensor([once])
        distributed.all_reduce(longest, distributed.ReduceOp.MAX)
        once = float(longest)
    steps = max(2, round(0.4 / once))
    for engine in built.values():
        engine.bytes = 0
    times = {kind: [] for kind in built}
    for _ in range(rounds):
        for kind, engine in built.items():
            times[kind].append(turn(engine, steps, ranks))
    sent = {kind: engine.bytes / (steps * rounds) for kind, engine in built.items()}
    pipe.send((times, sent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
    pipe.recv()


def measure(name: str, ranks: int, engines: list[str], rounds: int) -> list[Any]:
    """What each rank has measured."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            arguments = (theirs, rank, ranks, str(Path(folder) / "meeting"), name, engines, rounds)
            processes.append(context.Process(target=serve, args=arguments))
            processes[-1].start()
            pipes.append(ours)
        found = [pipe.recv() for pipe in pipes]
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*", default=DEFAULT, choices=sorted(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows, missed = [], False
    for name in options.only:
        row: dict[str, Any] = {"workload": name}
        for ranks in (1, 2):
            times, sent, _ = measure(name, ranks, list(ENGINES), options.rounds)[0]
            pairs = zip(times["apportion"], times["ddp"], strict=True)
            row[f"overhead_{ranks}"] = round(statistics.median(ours / theirs for ours, theirs in pairs), 3)
            row[f"steps_per_second_{ranks}"] = {
                kind: round(1 / statistics.median(turns), 2) for kind, turns in times.items()
            }
            row[f"peak_{ranks}"] = {
                kind: max(peak for _, _, peak in measure(name, ranks, [kind], 1)) >> 20 for kind in ENGINES
            }
        row["growth"] = round(row["overhead_2"] / row["overhead_1"], 3)
        row["bytes"] = {kind: round(count) for kind, count in sent.items()}
        row["bytes_ratio"] = round(sent["apportion"] / sent["ddp"], 4)
        missed |= row["growth"] > GROWTH or row["bytes_ratio"] > BYTES
        rows.append(row)
        print(json.dumps(row), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
