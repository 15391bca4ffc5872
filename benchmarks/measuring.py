"""Measures engines in a process of its own: `measuring.run` starts one, which prints a line of JSON.

**Time.** Engines take turns, A B C A B C, so that a slow moment hits all of them. A turn lasts at least a fifth of a second and gives the
seconds for each record that was drawn, as Poisson batches differ in size. The scheduler tells how long the process's threads waited for
a processor; a turn is *clean* if that is below 3 % of its time. The figure of an engine is the median of its clean turns, or of its five
cleanest if fewer are clean, for a batch of the expected size. What these turns took of the processors is noted beside it: on a busy machine
its ratios are more reliable, with one thread (threads that wait for each other work, too).

**Memory.** What a few steps add, at their peak, to the memory of a process that has built model, records and engine, and has taken a step
on eight records, so that all libraries are loaded.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from more_workloads import MORE
from peers import ENGINES, Engine, require_finite
from workloads import WORKLOADS, Workload

ALL = WORKLOADS | MORE
THREADS = 2
WARM_UP, CLEAN, ENOUGH, SHORTEST_TURN = 2, 0.03, 5, 0.2
PEAK_STEPS = 2
STEADY_BLOCK = 128 << 10


def run(
    task: str,
    workload: str,
    engines: list[str],
    *,
    rounds: int = 1,
    scale: float = 1.0,
    micro_batch: int | None = None,
    threads: int = THREADS,
    steady: bool = False,
) -> dict[str, Any]:
    """{"figures": {engine: ...}, "failed": {engine: reason}} of `task`, "time" or "peak", from a new process.

    Args:
        steady: the C library gives large blocks back to the system as soon as they are free, instead of learning what to keep: the same
            run of plain SGD on `imdb` takes 9 MiB then, and 9 or 23 otherwise.
    """
    command = [__file__, task, workload, *engines, f"--rounds={rounds}", f"--scale={scale!r}"]
    command.append(f"--threads={threads}")
    if micro_batch is not None:
        command.append(f"--micro-batch={micro_batch}")
    try:
        return in_new_process(command, {"MALLOC_MMAP_THRESHOLD_": str(STEADY_BLOCK)} if steady else {})
    except RuntimeError as error:
        return {"figures": {}, "failed": dict.fromkeys(engines, str(error))}


def in_new_process(command: list[str], surroundings: dict[str, str] | None = None) -> dict[str, Any]:
    """The line of JSON that `python command` prints last; `RuntimeError` with its last words if it fails.

    Args:
        surroundings: variables of its environment, beside those of this process.
    """
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, env=os.environ | (surroundings or {})
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


def run_delay() -> float:
    """Seconds that the threads of this process have waited for a processor; 0 where the system does not tell."""
    nanoseconds = 0
    for task in Path("/proc/self/task").glob("*"):
        with suppress(OSError, IndexError):
            nanoseconds += int((task / "schedstat").read_text().split()[1])
    return nanoseconds / 1e9


def turn(engine: Engine, shortest: float = SHORTEST_TURN) -> tuple[float, float, float]:
    """(seconds a record, share of the time spent waiting, seconds of processors a record) of steps that together last long enough."""
    drawn, waited, worked, started = 0, run_delay(), time.process_time(), time.perf_counter()
    while True:
        drawn += engine.step()
        seconds = time.perf_counter() - started
        if seconds >= shortest and drawn:
            return seconds / drawn, (run_delay() - waited) / seconds, (time.process_time() - worked) / drawn


def figure(turns: list[tuple[float, float, float]]) -> tuple[float, float, int]:
    """(median seconds a record of the clean turns, or of the cleanest few; the same of processors; how many were clean)."""
    by_waiting = sorted(turns, key=lambda one: one[1])
    clean = sum(waited < CLEAN for _, waited, _ in turns)
    seconds, _, worked = zip(*by_waiting[: max(clean, ENOUGH)], strict=True)
    return statistics.median(seconds), statistics.median(worked), clean


def times(workload: Workload, names: list[str], rounds: int) -> dict[str, Any]:
    """Milliseconds of a step on a batch of the expected size. Up to twice as many rounds if not enough were clean."""
    engines, failed = {}, {}
    for name in names:
        try:
            engines[name] = ENGINES[name](workload)
            for _ in range(WARM_UP):
                engines[name].step()
        except Exception as error:
            engines.pop(name, None)
            failed[name] = _reason(error)
    turns: dict[str, list[tuple[float, float, float]]] = {name: [] for name in engines}
    for played in range(2 * rounds):
        if played >= rounds and all(figure(turns[name])[-1] >= min(rounds, ENOUGH) for name in engines):
            break
        for name, engine in engines.items():
            turns[name].append(turn(engine))
    figures = {}
    for name, engine in engines.items():
        require_finite(name, engine)
        seconds, worked, clean = figure(turns[name])
        figures[name] = {
            "milliseconds": 1e3 * seconds * workload.batch,
            "cpu_milliseconds": 1e3 * worked * workload.batch,
            "clean": clean,
            "turns": len(turns[name]),
        }
    return {"figures": figures, "failed": failed}


def status(field: str) -> float:
    """A size from /proc/self/status in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024


def give_back() -> None:
    """Return what was freed to the system, so that it cannot hide what comes next."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def peak(workload: Workload, name: str) -> dict[str, Any]:
    """MiB that the steps of one engine add at their peak."""
    try:
        ENGINES[name](replace(workload, batch=8)).step()
        engine = ENGINES[name](workload)
        give_back()
        with suppress(OSError):  # where it is not allowed, the peak of the set-up counts as well
            Path("/proc/self/clear_refs").write_text("5")
        before = status("VmRSS")
        for _ in range(PEAK_STEPS):
            engine.step()
        added = status("VmHWM") - before
        require_finite(name, engine)
    except Exception as error:
        return {"figures": {}, "failed": {name: _reason(error)}}
    return {"figures": {name: added}, "failed": {}}


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("time", "peak"))
    parser.add_argument("workload", choices=ALL)
    parser.add_argument("engines", nargs="+", choices=ENGINES)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--micro-batch", type=int)
    parser.add_argument("--threads", type=int, default=THREADS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    workload = ALL[options.workload].scaled(options.scale)
    if options.micro_batch is not None:
        workload = replace(workload, micro_batch=options.micro_batch, pinned=True)
    if options.task == "time":
        result = times(workload, options.engines, options.rounds)
    else:
        (name,) = options.engines
        result = peak(workload, name)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
