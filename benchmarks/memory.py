"""Memory against the size of the batch, on the network B1: four ways to take a step.

    python benchmarks/memory.py            # minutes; writes benchmarks/memory.json and docs/images/memory.svg
    python benchmarks/memory.py --check    # minutes; the memory model against what is measured, on all workloads

**Non-private** SGD keeps activations. **Materialised** per-record gradients cost batch × parameters. **Micro-batched**, our engine works
on 64 records at one time, whatever the batch. **One-pass**, it takes the whole batch at once and keeps no per-record gradient.
Each figure comes from a process of its own: MiB added at the peak of two steps, as measuring.py defines it.

**Check.** What `apportion.models.memory` predicts must be within 25 % of what is measured, at three physical batches on each workload, and
a logical batch four times as large must not change it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import drawing
import measuring
import torch
from peers import OURS
from torch.nn import functional
from workloads import WORKLOADS

from apportion.models.engine_choice import choose_engine
from apportion.models.memory import measure_memory

WORKLOAD, BATCHES, MICRO_BATCH = "b1", (64, 128, 256, 512, 1024, 2048), 64
WAYS = {
    "non-private": ("sgd", None),
    "materialised": ("vmap", None),
    "micro-batched": ("apportion", MICRO_BATCH),
    "one-pass": ("apportion", None),
}
PHYSICAL = {"b1": (64, 256, 1024), "papernot": (64, 256, 1024), "b2": (32, 64, 128), "mlp": (64, 256, 1024)}
PHYSICAL |= {"imdb": (64, 256, 1024), "lstm": (64, 128, 256), "transformer": (4, 8, 16), "wrn": (8, 16, 32)}
TOLERANCE, PIECES, MORE_PIECES = 0.25, 3, 12
FILE = Path(__file__).with_name("memory.json")
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "memory.svg"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="measure nothing, draw what was measured before")
    parser.add_argument("--check", action="store_true", help="compare the memory model with what is measured")
    parser.add_argument("--workloads", type=lambda text: text.split(","), default=list(PHYSICAL), help="for --check")
    parser.add_argument("--batches", type=lambda text: [int(part) for part in text.split(",")], default=BATCHES)
    parser.add_argument("--print", action="store_true", help="write no file, to try things out")
    options = parser.parse_args()
    if options.draw:
        draw(stored()["curves"])
        return 0
    if options.check:
        predictions = check(options.workloads)
        if not options.print:
            others = [row for row in stored()["predictions"] if row["workload"] not in options.workloads]
            store(predictions=others + predictions)
        return 0 if all(abs(row["ratio"] - 1) <= TOLERANCE for row in predictions) else 1
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
        store(curves=rows)
        draw(rows)
    return 0


def stored() -> dict[str, list[dict]]:
    """{"curves": memory against the batch, "predictions": the memory model against what was measured}."""
    empty: dict[str, list[dict]] = {"curves": [], "predictions": []}
    return empty | json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else empty


def store(**parts: list[dict]) -> None:
    FILE.write_text(json.dumps(stored() | parts, indent=1) + "\n", encoding="utf-8")


def check(names: list[str]) -> list[dict]:
    """For each workload three physical batches, and the middle one again with a larger logical batch."""
    rows = []
    for name in names:
        workload, sizes = WORKLOADS[name], PHYSICAL[name]
        model, record = workload.model(), torch.zeros_like(workload.inputs(1)[0])
        mode = choose_engine(model, functional.cross_entropy, record, torch.tensor(0)).mode
        predicted = measure_memory(model, mode, record)
        engine = OURS[-1] if workload.images else OURS[0]  # what a person gets who pins nothing
        for physical, pieces in (*((size, PIECES) for size in sizes), (sizes[1], MORE_PIECES)):
            scale = physical * pieces / workload.batch
            result = measuring.run("peak", name, [engine], scale=scale, micro_batch=physical)
            if result["failed"]:
                raise SystemExit(f"error: {name} at {physical}: {result['failed'][engine]}")
            measured, expected = result["figures"][engine], predicted.added_at(physical) / 2**20
            row = {"workload": name, "physical": physical, "logical": physical * pieces}
            row |= {"predicted_mb": round(expected, 1), "measured_mb": round(measured, 1)}
            rows.append(row | {"ratio": round(measured / expected, 3)})
            print(
                f"{name:<12} {physical:>5} of {physical * pieces:>6} records  predicted {expected:8.1f} MiB"
                f"  measured {measured:8.1f} MiB  ratio {measured / expected:5.2f}",
                flush=True,
            )
    return rows


def draw(rows: list[dict]) -> None:
    lines = {
        way: [(row["batch"], max(row["peak_mb"], 1.0)) for row in rows if row["way"] == way] for way in WAYS
    }  # a logarithmic axis has no zero
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    picture = drawing.curves("Memory of a step on B1", "records in a batch", "MiB added at the peak", lines)
    PICTURE.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
