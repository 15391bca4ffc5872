"""Memory against the size of the batch, on the network B1: four ways to take a step.

    python benchmarks/memory.py            # minutes; writes benchmarks/memory.json and docs/images/memory.svg

**Non-private** SGD keeps activations. **Materialised** per-record gradients cost batch × parameters. **Micro-batched**, our engine works
on 64 records at one time, whatever the batch. **One-pass**, it takes the whole batch at once and keeps no per-record gradient.
Each figure comes from a process of its own: MiB added at the peak of two steps, as measuring.py defines it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import drawing
import measuring
from workloads import WORKLOADS

WORKLOAD, BATCHES, MICRO_BATCH = "b1", (64, 128, 256, 512, 1024, 2048), 64
WAYS = {
    "non-private": ("sgd", None),
    "materialised": ("vmap", None),
    "micro-batched": ("apportion", MICRO_BATCH),
    "one-pass": ("apportion", None),
}
FILE = Path(__file__).with_name("memory.json")
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "memory.svg"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="measure nothing, draw what was measured before")
    parser.add_argument("--batches", type=lambda text: [int(part) for part in text.split(",")], default=BATCHES)
    parser.add_argument("--print", action="store_true", help="write no file, to try things out")
    options = parser.parse_args()
    if options.draw:
        draw(json.loads(FILE.read_text(encoding="utf-8")))
        return 0
    rows = []
    for batch in options.batches:
        for way, (engine, micro_batch) in WAYS.items():
            scale = batch / WORKLOADS[WORKLOAD].batch
            result = measuring.run("peak", WORKLOAD, [engine], scale=scale, micro_batch=micro_batch)
            if result["failed"]:
                print(f"error: {way} at {batch}: {result['failed'][engine]}", file=sys.stderr)
                return 2
            rows.append({"way": way, "batch": batch, "peak_mb": round(result["figures"][engine], 1)})
            print(f"{way:<14} {batch:>6} records {rows[-1]['peak_mb']:10.1f} MiB", flush=True)
    if not options.print:
        FILE.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        draw(rows)
    return 0


def draw(rows: list[dict]) -> None:
    lines = {
        way: [(row["batch"], max(row["peak_mb"], 1.0)) for row in rows if row["way"] == way] for way in WAYS
    }  # a logarithmic axis has no zero
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    picture = drawing.curves("Memory of a step on B1", "records in a batch", "MiB added at the peak", lines)
    PICTURE.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
