"""How time and memory of a private step grow: with parameters, batch, length of a text, and steps of a plan.

    python benchmarks/growth.py            # about 10 minutes on a quiet machine; writes benchmarks/growth.json and docs/images/growth-*.svg
    python benchmarks/growth.py --draw     # measure nothing, draw what was measured before

Along each axis everything else is fixed. Each size and engine is measured in a process of its own, as measuring.py defines it; plain SGD is
measured beside ours, because what grows faster than linearly in the model itself (attention, in the length of a text) does so for both.
The exponent b of time ∝ sizeᵇ is fitted by least squares to the logarithms of the larger half of the sizes, where fixed costs no longer
hide it. For the steps of a plan the time is that of planning, calibration included, and the memory that of the plan.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import drawing
import measuring
import torch
from torch import nn
from workloads import Transformer, Workload, images, papernot, tokens

FILE = Path(__file__).with_name("growth.json")
PICTURES = Path(__file__).parents[1] / "docs" / "images"
ENGINES = ("sgd", "apportion")
ROUNDS = 6
PLAN = "plan"


def perceptron(parameters: int) -> Workload:
    """100-w-w-10 with w such that it has about so many parameters."""
    width = round((math.sqrt(111**2 + 4 * parameters) - 111) / 2)

    def build() -> nn.Module:
        layers = (nn.Linear(100, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
        return nn.Sequential(*layers)

    return Workload("perceptron", build, images(100), 10, 32, width**2 + 112 * width + 10)


def convolutional(batch: int) -> Workload:
    return Workload("papernot", papernot, images(1, 28, 28), 10, batch, 26_010)


def texts(length: int) -> Workload:
    width = 128
    block = 4 * width + 3 * width * (width + 1) + width * (width + 1) + 8 * width**2 + 5 * width
    count = 1_000 * width + 4 * block + 2 * width + 2 * width + 2
    return Workload("transformer", lambda: Transformer(width, length), tokens(1_000, length), 2, 16, count)


@dataclass(frozen=True)
class Axis:
    """What grows: sizes, and the workload of each."""

    label: str
    sizes: tuple[int, ...]
    workload: Callable[[int], Workload] | None


AXES = {
    "parameters": Axis("parameters", (10**4, 10**5, 10**6, 10**7, 10**8), perceptron),
    "batch": Axis("records in a batch", (64, 128, 256, 512, 1024, 2048, 4096), convolutional),
    "length": Axis("words in a text", (16, 32, 64, 128, 256, 512), texts),
    "steps": Axis("different steps of a plan", (100, 300, 1_000, 3_000, 10_000, 30_000), None),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="measure nothing, draw what was measured before")
    parser.add_argument("--axes", type=lambda text: text.split(","), default=list(AXES), help="only these axes")
    parser.add_argument("--one", nargs=3, metavar=("AXIS", "ENGINE", "SIZE"), help="one point, in this process")
    options = parser.parse_args()
    if options.one:
        axis, engine, size = options.one
        print(json.dumps(one(axis, engine, int(size))))
        return 0
    for axis in [] if options.draw else options.axes:
        points = [measure(axis, engine, size) for size in AXES[axis].sizes for engine in engines(axis)]
        FILE.write_text(json.dumps(stored() | {axis: points}, indent=1) + "\n", encoding="utf-8")
    for axis, points in stored().items():
        draw(axis, points)
    return 0


def stored() -> dict[str, list[dict]]:
    """For each axis its points."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def engines(axis: str) -> tuple[str, ...]:
    return ENGINES if AXES[axis].workload else (PLAN,)


def measure(axis: str, engine: str, size: int) -> dict[str, Any]:
    """One point, in a new process."""
    command = [sys.executable, __file__, "--one", axis, engine, str(size)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: {axis} {size}, {engine}: {done.stderr.strip().splitlines()[-1]}")
    point = {"engine": engine, "size": size} | json.loads(done.stdout.splitlines()[-1])
    print(f"{axis:<11} {size:>10,} {engine:<10} {point['ms']:10.2f} ms {point['mib']:9.1f} MiB", flush=True)
    return point


def one(axis: str, engine: str, size: int) -> dict[str, float]:
    """{"ms": of a step or of a plan, "mib": added at its peak}."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(measuring.THREADS)
    build = AXES[axis].workload
    if build is None:
        return plan(size)
    workload = build(size)
    found = measuring.peak(workload, engine)
    if found["failed"]:
        raise RuntimeError(found["failed"][engine])
    timed = measuring.times(workload, [engine], ROUNDS)["figures"][engine]["milliseconds"]
    return {"ms": round(timed, 3), "mib": round(found["figures"][engine], 1)}


def plan(steps: int) -> dict[str, float]:
    """Time and memory of a plan whose noise is different at every step, ε = 3."""
    import apportion as ap

    budget = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())

    def make() -> None:
        ap.plan(budget, recipe="du-dynamic", population=60_000, sample_rate=0.01, steps=steps)

    started = time.perf_counter()
    make()
    seconds = time.perf_counter() - started
    tracemalloc.start()  # in a second plan: it makes everything slower
    make()
    return {"ms": round(1e3 * seconds, 1), "mib": round(tracemalloc.get_traced_memory()[1] / 2**20, 2)}


def exponent(points: list[tuple[float, float]]) -> float:
    """b of y ∝ xᵇ, by least squares to the logarithms of the larger half."""
    kept = [(math.log(x), math.log(max(y, 1e-9))) for x, y in sorted(points)[len(points) // 2 :]]
    middle_x, middle_y = (sum(column) / len(kept) for column in zip(*kept, strict=True))
    return sum((x - middle_x) * (y - middle_y) for x, y in kept) / sum((x - middle_x) ** 2 for x, _ in kept)


def series(points: list[dict], what: str) -> dict[str, list[tuple[float, float]]]:
    """For each engine its points (size, ms or MiB)."""
    found: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        found.setdefault(point["engine"], []).append((point["size"], max(point[what], 0.01)))  # no zero on such an axis
    return found


def draw(axis: str, points: list[dict]) -> None:
    lines = {
        f"{engine}, {unit} ~ size^{exponent(line):.2f}": line
        for what, unit in (("ms", "ms"), ("mib", "MiB"))
        for engine, line in series(points, what).items()
    }
    title = f"Growth with the number of {AXES[axis].label}"
    picture = drawing.curves(title, AXES[axis].label, "ms, and MiB added at the peak", lines)
    (PICTURES / f"growth-{axis}.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
