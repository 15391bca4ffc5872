"""A private step beside another job: how much longer it takes, and how much longer plain SGD takes.

    python benchmarks/beside.py                          # about 5 minutes on a quiet machine; writes benchmarks/beside.json
    python benchmarks/beside.py --workloads logistic --rounds 2 --print
    python benchmarks/engine.py --write                  # the section of docs/performance.md

On as many threads as there are cores, an operation is done when its slowest thread is, and a thread that shares its core with another job
is slow. Many short operations suffer more than a few long ones. In one process for each workload, plain SGD and ours take turns, on two
threads and on one: alone, then beside a process that does nothing but count, then alone again. The growth of a way is its time beside the
other job over its time alone in the same round; what is asked of ours is that it grows no more than plain SGD does. Ranges are over
rounds.

Exit code 2 if an engine cannot run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import measuring
import torch
from engine import surroundings
from page_tables import ranged, rows
from peers import ENGINES, require_finite
from results import code

FILE = Path(__file__).with_name("beside.json")
WORKLOADS = ("papernot", "mlp", "imdb", "lstm", "table", "logistic", "b1")
ROUNDS, TURN, SETTLE = 6, 0.5, 0.3
ALONE, BESIDE = "alone", "beside"
THREADS = (2, 1)
SMALL = ("table", "logistic")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=lambda text: text.split(","), default=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--print", action="store_true", help="write no file, to try things out")
    parser.add_argument("--one", action="store_true", help="one workload, in this process")
    options = parser.parse_args()
    if options.one:
        (name,) = options.workloads
        print(json.dumps(measure(name, options.rounds)))
        return 0
    for name in options.workloads:
        try:
            record = measuring.in_new_process([__file__, "--one", f"--workloads={name}", f"--rounds={options.rounds}"])
        except RuntimeError as error:
            print(f"error: {name}: {error}", file=sys.stderr)
            return 2
        print(" | ".join([name, *cells(record)]), flush=True)
        if not options.print:
            record |= {"code": code(), **surroundings()}
            FILE.write_text(json.dumps(stored() | {name: record}, indent=1) + "\n", encoding="utf-8")
    return 0


def stored() -> dict[str, dict[str, Any]]:
    """By workload, what was measured."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


@contextmanager
def another_job() -> Iterator[None]:
    """A process that keeps a core busy; the system decides which."""
    job = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(SETTLE)
        yield
    finally:
        job.kill()
        job.wait()


def measure(name: str, rounds: int) -> dict[str, Any]:
    """{"milliseconds": {way: {"alone": one for each round, "beside": likewise}}} of a step on an expected batch."""
    warnings.simplefilter("ignore")
    workload = measuring.ALL[name]
    ours = "apportion-channels-last" if workload.images else "apportion"  # what a person gets who pins nothing
    engines = {"sgd": ENGINES["sgd"](workload), "apportion": ENGINES[ours](workload)}
    ways = {(engine, threads): engines[engine] for threads in THREADS for engine in engines}
    found: dict[str, dict[str, list[float]]] = {way_name(*way): {ALONE: [], BESIDE: []} for way in ways}

    def play(state: str) -> None:
        for (engine, threads), one in ways.items():
            torch.set_num_threads(threads)
            one.step()  # threads have to be found again
            seconds = measuring.turn(one, TURN)[0]
            found[way_name(engine, threads)][state].append(round(1e3 * workload.batch * seconds, 4))

    for engine in engines.values():
        for _ in range(measuring.WARM_UP):
            engine.step()
    for _ in range(rounds):
        play(ALONE)
        with another_job():
            play(BESIDE)
    for engine, one in engines.items():
        require_finite(engine, one)
    return {"milliseconds": found}


def way_name(engine: str, threads: int) -> str:
    return engine if threads == THREADS[0] else f"{engine}, one thread"


def growth(record: dict[str, Any], way: str) -> list[float]:
    """How much longer a step takes beside the other job, in each round."""
    found = record["milliseconds"][way]
    return [busy / quiet for quiet, busy in zip(found[ALONE], found[BESIDE], strict=True)]


def relative(record: dict[str, Any]) -> list[float]:
    """Growth of ours over that of plain SGD, in each round."""
    return [own / base for own, base in zip(growth(record, "apportion"), growth(record, "sgd"), strict=True)]


def on_one_thread(record: dict[str, Any], state: str) -> list[float]:
    """Our time on one thread over that on two, in each round."""
    one, two = (record["milliseconds"][way][state] for way in ("apportion, one thread", "apportion"))
    return [single / double for single, double in zip(one, two, strict=True)]


def cells(record: dict[str, Any]) -> list[str]:
    """A row of the table."""
    alone = record["milliseconds"]["apportion"][ALONE]
    found = [growth(record, "sgd"), growth(record, "apportion"), relative(record)]
    found += [on_one_thread(record, ALONE), on_one_thread(record, BESIDE)]
    return [f"{statistics.median(alone):.1f}", *map(ranged, found)]


def section() -> str:
    """Of docs/performance.md; empty if nothing was measured."""
    found = stored()
    if not found:
        return ""
    head = ["workload", "ours alone, ms", "plain SGD grows", "ours grows", "ours / plain SGD"]
    table = rows(
        [*head, "one thread / two, alone", "one thread / two, beside"],
        [[name, *cells(record)] for name, record in found.items()],
    )
    within = [name for name, record in found.items() if statistics.median(relative(record)) <= 1]
    beyond = [name for name in found if name not in within]
    verdict = f"Ours grows no more than plain SGD on {', '.join(within) or 'none of them'}"
    verdict += f", and more on {', '.join(beyond)}." if beyond else "."
    days = ", ".join(sorted({record["date"] for record in found.values()}))
    return f"""## Beside another job

With `python benchmarks/beside.py` on {days}: two threads on two cores, one of which another process keeps busy. An operation is done when
its slowest thread is, so everything takes longer, short operations most. {verdict} The last two columns are the time of ours on one
thread (`torch.set_num_threads(1)`) over that on two: below 1, one thread is faster, so say `Execution(threads=1)` where the other cores are
busy. Small micro-batches run on one thread anyway, as those of {", ".join(name for name in found if name in SMALL)}. Median of rounds
[minimum–maximum].

{table}"""


if __name__ == "__main__":
    sys.exit(main())
