"""Noise from the cryptographic stream against torch's `normal_`, which is fast and predictable.

    python benchmarks/noise.py                         # a table
    python benchmarks/noise.py --json benchmarks/noise.json
    python benchmarks/noise.py --large --rounds 51     # 10⁸ values, too

Ours are float64 normals from AES-256 in counter mode: `normals` of a stream up to half a million, those of a field (`normal_field.py`)
beyond, in one and in two threads; and `add_gaussian_noise` as a whole, which adds them to a float32 sum in place. torch's `normal_`
has one thread whatever is set: float32 (its default type) newly allocated, float32 in place, float64 newly allocated. Ours are newly
allocated, too, unless it says "in place".

All take turns, so that a busy machine slows all of them. Of each the median of wall time and of CPU time (all threads) is printed, in
nanoseconds a value, and the median of the ratios, round by round, to torch's newly allocated float32. Wall time of two threads means
nothing while others use the cores: rounds in which this process waited for a processor for more than 5 % of the time, in this turn or
in torch's, are left out. If fewer than five are clean the five cleanest are taken; the last column says how many were. Exit code 1 if
two threads need more than the target (1.2 of `normal_`, wall time) at a million values or more.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import cryptography
import numpy as np
import torch
from measuring import run_delay

from apportion.curator import mechanisms
from apportion.curator.normal_field import NormalField
from apportion.curator.randomness import FIELD_FROM_NUMBERS, KEY_BYTES, Stream

SIZES, LARGE = (26_010, 1_000_000, 10_000_000), 100_000_000
CLEAN, ENOUGH = 0.05, 5


def normals(stream: Stream, count: int, threads: int) -> object:
    """As noise is made for a release of `count` numbers, without a release."""
    if count <= FIELD_FROM_NUMBERS:
        return stream.normals(count)
    return NormalField(stream.words(KEY_BYTES // 8).tobytes()).normals(0, count, threads)


def contenders(count: int) -> dict[str, Callable[[], object]]:
    stream, reused, total = Stream(bytes(32)), torch.empty(count), torch.zeros(count)

    def whole(threads: int) -> object:
        torch.set_num_threads(threads)
        try:
            return mechanisms.add_gaussian_noise(total, 1.0, stream, 1.5)
        finally:
            torch.set_num_threads(1)

    return {
        "torch_float32": lambda: torch.empty(count).normal_(),
        "torch_float32_in_place": reused.normal_,
        "torch_float64": lambda: torch.empty(count, dtype=torch.float64).normal_(),
        "normals_1": lambda: normals(stream, count, 1),
        "normals_2": lambda: normals(stream, count, 2),
        "noise_in_place_1": lambda: whole(1),
        "noise_in_place_2": lambda: whole(2),
    }


def wait_for_quiet(patience: float) -> None:
    """Until no other process is running, or patience ends."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        running = re.search(r"^procs_running (\d+)$", Path("/proc/stat").read_text(), re.MULTILINE)
        if running is None or int(running[1]) <= 1:
            return
        time.sleep(0.002)


def measure(count: int, rounds: int, patience: float) -> dict[str, Any]:
    """Medians of interleaved rounds."""
    kinds = contenders(count)
    turns: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in kinds}  # wall, CPU, waited
    for turn in range(-2, rounds):
        for kind, draw in kinds.items():
            wait_for_quiet(patience)
            waited, wall, processor = run_delay(), time.perf_counter(), time.process_time()
            draw()
            taken = time.perf_counter() - wall, time.process_time() - processor, run_delay() - waited
            if turn >= 0:  # before that, memory, tables and threads are warmed up
                turns[kind].append(taken)
    ratios = {kind: [one[:2] for one in turns[kind]] for kind in kinds}
    result: dict[str, Any] = {"values": count, "rounds": rounds}
    for kind, all_turns in turns.items():
        share = [waited / wall for wall, _, waited in all_turns]
        base = [turn[2] / turn[0] for turn in turns["torch_float32"]]
        order = sorted(range(rounds), key=lambda k: max(share[k], base[k]))
        clean = sum(max(share[k], base[k]) < CLEAN for k in order)
        kept = order[: max(clean, min(ENOUGH, rounds))]
        wall, processor = (statistics.median(all_turns[k][i] for k in kept) / count * 1e9 for i in (0, 1))
        against = [statistics.median(ratios[kind][k][i] / ratios["torch_float32"][k][i] for k in kept) for i in (0, 1)]
        result[kind] = {
            "wall_ns": round(wall, 3),
            "cpu_ns": round(processor, 3),
            "wall_ratio": round(against[0], 3),
            "cpu_ratio": round(against[1], 3),
            "clean_rounds": clean,
        }
    return result


def show(row: dict[str, Any]) -> None:
    print(f"\n{row['values']:,} values, {row['rounds']} rounds")
    print(f"{'':24}{'wall ns':>9}{'CPU ns':>9}{'M/s/core':>10}{'wall ratio':>12}{'CPU ratio':>11}{'clean':>7}")
    for kind, one in row.items():
        if isinstance(one, dict):
            speed = 1e3 / one["cpu_ns"]
            print(
                f"{kind:24}{one['wall_ns']:9.2f}{one['cpu_ns']:9.2f}{speed:10.0f}{one['wall_ratio']:12.2f}"
                f"{one['cpu_ratio']:11.2f}{one['clean_rounds']:7}"
            )


def machine() -> dict[str, Any]:
    name = platform.processor()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    return {
        "processor": name,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "cryptography": cryptography.__version__,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=21, help="rounds at ten million values; smaller sizes have more")
    parser.add_argument("--large", action="store_true", help=f"{LARGE:,} values, too: 2 GB of memory")
    parser.add_argument("--target", type=float, default=1.2)
    parser.add_argument("--patience", type=float, default=0.0, help="seconds to wait, before a turn, for idle cores")
    parser.add_argument("--json", type=Path, help="keep the results there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, before, missed = [], os.getloadavg(), []
    for count in (*SIZES, LARGE) if options.large else SIZES:
        rounds = max(3, options.rounds * min(20, SIZES[-1] // count)) if count < LARGE else max(3, options.rounds // 3)
        rows.append(measure(count, rounds, options.patience))
        show(rows[-1])
        gc.collect()
        if count >= 1_000_000 and rows[-1]["normals_2"]["wall_ratio"] > options.target:
            missed.append(f"{count:,} values: {rows[-1]['normals_2']['wall_ratio']} of normal_, not {options.target}")
    if options.json:
        load = {"before": before, "after": os.getloadavg()}
        kept = {"machine": machine(), "load_average": load, "target_wall_ratio": options.target, "sizes": rows}
        options.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(*missed, sep="\n")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
