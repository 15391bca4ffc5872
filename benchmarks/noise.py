"""Noise from the cryptographic stream against torch's `normal_`, which is fast and predictable.

    python benchmarks/noise.py                 # JSON lines: nanoseconds a value and ratios
    python benchmarks/noise.py --rounds 51 --target 1.5

Ours are float64 normals from AES-256 in counter mode; torch's are float32 (its default type) and float64. The sizes are the demo's
model, a million and ten million. Ours are newly allocated each time, and so are torch's, unless it says "in place". Rounds are
interleaved and ratios of CPU time are taken round by round, so that a busy machine slows both. All run in one thread, like torch's
`normal_` anyway. Exit code 1 if the median ratio to newly allocated float32 exceeds the target at a million values or more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch

from apportion.curator.randomness import Stream

SIZES = (26_010, 1_000_000, 10_000_000)


def measure(count: int, rounds: int) -> dict[str, float]:
    """Medians of interleaved rounds: nanoseconds a value, and ours divided by theirs."""
    stream, reused = Stream(bytes(32)), torch.empty(count)
    kinds: dict[str, Callable[[], object]] = {
        "ours": lambda: stream.normals(count),
        "key_stream": lambda: stream.words(count),
        "torch_float32": lambda: torch.empty(count).normal_(),
        "torch_float32_in_place": reused.normal_,
        "torch_float64": lambda: torch.empty(count, dtype=torch.float64).normal_(),
    }
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(-3, rounds):
        for kind, draw in kinds.items():
            start = time.process_time()
            draw()
            if turn >= 0:  # before that, memory and tables are warmed up
                taken[kind].append(time.process_time() - start)
    result = {f"{kind}_ns": 1e9 * statistics.median(times) / count for kind, times in taken.items()}
    for kind in ("torch_float32", "torch_float32_in_place", "torch_float64"):
        pairs = zip(taken["ours"], taken[kind], strict=True)
        result[f"ratio_to_{kind}"] = statistics.median(ours / theirs for ours, theirs in pairs)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=21, help="rounds at ten million values; smaller sizes have more")
    parser.add_argument("--target", type=float, default=1.5)
    options = parser.parse_args()
    missed = False
    torch.set_num_threads(1)
    for count in SIZES:
        row = measure(count, options.rounds * min(20, SIZES[-1] // count))
        print(json.dumps({"values": count} | {key: round(row[key], 3) for key in row}))
        missed |= count >= 1_000_000 and row["ratio_to_torch_float32"] > options.target
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
