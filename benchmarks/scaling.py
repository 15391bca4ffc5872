"""A private step of one and of two processes, against DistributedDataParallel with the same settings, on gloo.

    python benchmarks/scaling.py                     # JSON lines; two cores, a quiet machine
    python benchmarks/scaling.py --only papernot --rounds 9 --json benchmarks/scaling.json

Every process has one thread. In a group of R processes the two engines take turns, A B A B, so that a slow moment hits both; a turn is a
few steps between two barriers. `overhead` is ours over DistributedDataParallel (of one process: plain SGD), median of the turns' ratios;
`growth` is the overhead of two processes over that of one, which should be at most 1.15. `bytes` are those of the tensors handed to
collectives in a step, ours over theirs, which should be at most 1.02. `peak_megabytes` is the largest memory of a process that runs one
engine alone. Rounds in which a rank waited for a processor for more than 5 % of the time are left out, as far as five others are left.

Besides, what a step of a large model is made of: a message between two ranks, an all-reduce of 16 million numbers, a durable charge.
Exit code 1 if one of the two targets is missed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measuring import run_delay
from noise import machine
from peers import LEARNING_RATE, MULTIPLIER, RATE, THRESHOLD
from torch import distributed, nn
from torch.nn import functional
from workloads import WORKLOADS, Workload

import apportion as ap
from apportion.accounting.account import Account
from apportion.accounting.ledger import Ledger
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.distributed import find_ranks
from apportion.training.opening import open_session, require_trainable
from apportion.training.optimizers import build_optimizer
from apportion.training.session import Setup

DEFAULT = ("papernot", "mlp", "wrn", "transformer")
GROWTH, BYTES = 1.15, 1.02
STEPS = 100_000
REDUCED = 1 << 24
CLEAN, ENOUGH = 0.05, 5
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


def turn(engine: Parallel | Private, steps: int, ranks: int) -> tuple[float, float]:
    """(seconds a step, part of the time that this process waited for a processor), between two barriers."""
    if ranks > 1:
        distributed.barrier()
    waited, started = run_delay(), time.perf_counter()
    for _ in range(steps):
        engine.step()
    if ranks > 1:
        distributed.barrier()
    seconds = time.perf_counter() - started
    return seconds / steps, (run_delay() - waited) / seconds


def join(rank: int, ranks: int, place: str) -> None:
    torch.set_num_threads(1)
    if ranks > 1:
        distributed.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=ranks)


def take_turns(rank: int, ranks: int, place: str, name: str, engines: list[str], rounds: int) -> Any:
    """One process: (seconds, waited) of the engines' turns, bytes a step, and its largest memory."""
    join(rank, ranks, place)
    workload = WORKLOADS[name]
    built = {kind: ENGINES[kind](workload, rank, ranks) for kind in engines}
    once = max(turn(engine, 2, ranks)[0] for engine in built.values())
    if ranks > 1:
        longest = torch.tensor([once])
        distributed.all_reduce(longest, distributed.ReduceOp.MAX)
        once = float(longest)
    steps = max(2, round(0.4 / once))
    for engine in built.values():
        engine.bytes = 0
    turns: dict[str, list[tuple[float, float]]] = {kind: [] for kind in built}
    for _ in range(rounds):
        for kind, engine in built.items():
            turns[kind].append(turn(engine, steps, ranks))
    sent = {kind: engine.bytes / (steps * rounds) for kind, engine in built.items()}
    return turns, sent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def talk(rank: int, ranks: int, place: str, rounds: int) -> Any:
    """One process: seconds of a message of one number to all others, and of an all-reduce of `REDUCED` float32 numbers."""
    join(rank, ranks, place)
    group, numbers = find_ranks(), torch.ones(REDUCED)
    short = [_seconds(group.arrive) for _ in range(50 * rounds)]
    return statistics.median(short), statistics.median(_seconds(lambda: _all_reduce(numbers)) for _ in range(rounds))


def _seconds(action: Callable[[], object]) -> float:
    distributed.barrier()
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def charge_seconds(times: int) -> float:
    """Of a charge that is durable on the disk of this folder."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        plan = ap.plan(
            "abadi",
            budget=ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record()),
            population=60_000,
            sample_rate=0.01,
            steps=times,
        )
        ledger = Ledger.create(Path(folder) / "ledger.sqlite")
        account, taken = Account(plan.budget, plan.rule(), ledger), []
        for event in plan.rule().declared:
            started = time.perf_counter()
            account.charge(event)
            taken.append(time.perf_counter() - started)
        ledger.close()
    return statistics.median(taken)


def serve(pipe: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    pipe.send(work(*arguments))
    pipe.recv()


def measure(work: Callable[..., Any], ranks: int, *arguments: Any) -> list[Any]:
    """What each rank has measured."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            task = theirs, work, (rank, ranks, str(Path(folder) / "meeting"), *arguments)
            processes.append(context.Process(target=serve, args=task))
            processes[-1].start()
            pipes.append(ours)
        found = [pipe.recv() for pipe in pipes]
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join()
    return found


def compared(found: list[Any], rounds: int) -> dict[str, Any]:
    """Medians over the rounds in which no rank waited for a processor; over the five cleanest, if there are fewer."""
    turns = found[0][0]
    waited = [max(ranks[0][kind][k][1] for ranks in found for kind in ENGINES) for k in range(rounds)]
    order = sorted(range(rounds), key=waited.__getitem__)
    clean = sum(part < CLEAN for part in waited)
    kept = order[: max(clean, min(ENOUGH, rounds))]
    ratios = [turns["apportion"][k][0] / turns["ddp"][k][0] for k in kept]
    speeds = {kind: round(1 / statistics.median(turns[kind][k][0] for k in kept), 2) for kind in ENGINES}
    return {
        "overhead": round(statistics.median(ratios), 3),
        "overhead_range": [round(min(ratios), 3), round(max(ratios), 3)],
        "steps_per_second": speeds,
        "clean_rounds": clean,
        "rounds": rounds,
    }


def row_of(name: str, rounds: int) -> dict[str, Any]:
    """Everything about one workload."""
    model = WORKLOADS[name].model()
    row: dict[str, Any] = {"workload": name, "parameters": sum(one.numel() for one in model.parameters())}
    for ranks in (1, 2):
        found = measure(take_turns, ranks, name, list(ENGINES), rounds)
        row[f"processes_{ranks}"] = compared(found, rounds) | {
            "peak_megabytes": {
                kind: max(peak for _, _, peak in measure(take_turns, ranks, name, [kind], 1)) >> 20 for kind in ENGINES
            }
        }
    sent = found[0][1]
    row["growth"] = round(row["processes_2"]["overhead"] / row["processes_1"]["overhead"], 3)
    row["bytes"] = {kind: round(count) for kind, count in sent.items()}
    row["bytes_ratio"] = round(sent["apportion"] / sent["ddp"], 4)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*", default=DEFAULT, choices=sorted(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows, before = [], os.getloadavg()
    message, reduced = measure(talk, 2, options.rounds)[0]
    costs = {
        "message_seconds": message,
        "all_reduce_seconds_per_byte": reduced / (4 * REDUCED),
        "charge_seconds": charge_seconds(20 * options.rounds),
    }
    print(json.dumps(costs), flush=True)
    for name in options.only:
        rows.append(row_of(name, options.rounds))
        print(json.dumps(rows[-1]), flush=True)
    if options.json:
        load = {"before": before, "after": os.getloadavg()}
        kept = {"machine": machine(), "load_average": load, "costs": costs, "workloads": rows}
        options.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return int(any(row["growth"] > GROWTH or row["bytes_ratio"] > BYTES for row in rows))


if __name__ == "__main__":
    sys.exit(main())
