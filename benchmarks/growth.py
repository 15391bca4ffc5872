"""How time and memory of a private step grow: with parameters, batch, length of a text, and steps of a plan.

    python benchmarks/growth.py            # about 10 minutes on a quiet machine; keeps each point in benchmarks/growth.json as it comes
    python benchmarks/growth.py --try      # the two smallest sizes of each axis, a minute; keeps nothing
    python benchmarks/engine.py --write    # the section of docs/performance.md and its pictures

Points that the same source has measured before are not measured again, so a run that was stopped goes on where it was.

Along each axis everything else is fixed. Each size is measured in a process of its own. Plain SGD and ours take turns in it
(measuring.py): what grows faster than linearly in the model itself (attention, in the length of a text) does so for both. The memory is
what two steps add at their peak, once all libraries are loaded. The exponent b of time ∝ sizeᵇ is fitted by least squares to the
logarithms of the larger half of the sizes, where fixed costs no longer hide it. For the steps of a plan the time is that of planning,
calibration included, and the memory that of the plan.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import drawing
import measuring
import torch
from engine import surroundings
from page_tables import NOTHING, rows
from peers import ENGINES as BUILDERS
from peers import require_finite
from results import code
from torch import nn
from workloads import Transformer, Workload, images, papernot, tokens

FILE = Path(__file__).with_name("growth.json")
ENGINES = ("sgd", "apportion")
ROUNDS, WARM_UP = 5, 1.5
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
    """What grows: sizes, the workload of each, and what is to be expected of it."""

    label: str
    sizes: tuple[int, ...]
    workload: Callable[[int], Workload] | None
    expected: str


AXES = {
    "parameters": Axis(
        "parameters",
        (10**4, 10**5, 10**6, 10**7, 10**8),
        perceptron,
        "linear: products, noise and update touch each parameter as many times. Small models are fixed cost.",
    ),
    "batch": Axis(
        "records in a batch",
        (64, 256, 1024, 4096),
        convolutional,
        "time linear. Memory of plain SGD linear; ours stops growing where a batch is cut into pieces.",
    ),
    "length": Axis(
        "words in a text",
        (16, 32, 64, 128, 256, 512),
        texts,
        "between linear (layers at each word) and quadratic (attention compares each word with all, and ours takes inner products of all "
        "pairs of words for the norms of wide layers).",
    ),
    "steps": Axis(
        "different steps of a plan",
        (100, 300, 1_000, 3_000, 10_000, 30_000),
        None,
        "linear: each different multiplier is priced once.",
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--try", action="store_true", dest="tried", help="the two smallest sizes; keeps nothing")
    parser.add_argument("--axes", type=lambda text: text.split(","), default=list(AXES), help="only these axes")
    parser.add_argument("--one", nargs=2, metavar=("AXIS", "SIZE"), help="one size, in this process")
    options = parser.parse_args()
    if options.one:
        axis, size = options.one
        print(json.dumps(one(axis, int(size))))
        return 0
    whole, now = True, code()
    for axis in options.axes:
        for size in AXES[axis].sizes[: 2 if options.tried else None]:
            if not options.tried and any(point["size"] == size and point["code"] == now for point in stored(axis)):
                continue
            point = measure(axis, size)
            whole &= "failed" not in point
            if not options.tried and "failed" not in point:
                store(axis, point | {"code": now, **surroundings()})
    return 0 if whole else 2


def stored(axis: str) -> list[dict[str, Any]]:
    """The points of an axis, by size."""
    found = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return found.get(axis, [])


def store(axis: str, point: dict[str, Any]) -> None:
    """Keep a point, in place of an older one of the same size."""
    points = [other for other in stored(axis) if other["size"] != point["size"]] + [point]
    everything = {name: stored(name) for name in AXES} | {axis: sorted(points, key=lambda one: one["size"])}
    FILE.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")


def measure(axis: str, size: int) -> dict[str, Any]:
    """One size, in a new process."""
    try:
        point = {"size": size} | measuring.in_new_process([__file__, "--one", axis, str(size)])
    except RuntimeError as error:
        print(f"error: {axis} {size:,}: {error}", file=sys.stderr, flush=True)
        return {"failed": str(error)}
    for engine, found in point["engines"].items():
        print(f"{axis:<11} {size:>11,} {engine:<10} {found['ms']:10.2f} ms {found['mib']:9.1f} MiB", flush=True)
    return point


def one(axis: str, size: int) -> dict[str, Any]:
    """{"engines": {engine: {"ms": of a step or a plan, "mib": added at its peak, "setup": seconds before the first step}}}."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(measuring.THREADS)
    build, smallest = AXES[axis].workload, AXES[axis].sizes[0]
    if build is None:
        return {"engines": {PLAN: plan(size)}}
    workload, found, engines = build(size), {}, {}
    for name in ENGINES:
        BUILDERS[name](build(smallest)).step()  # loads all libraries
        started = time.perf_counter()
        engines[name] = BUILDERS[name](workload)
        found[name] = {"setup": round(time.perf_counter() - started, 2), "mib": round(peak(engines[name]), 1)}
    for engine in engines.values():
        measuring.turn(engine, WARM_UP)  # oneDNN prepares itself for each size of a batch when it first comes
    turns: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ENGINES}
    for _ in range(ROUNDS):
        for name, engine in engines.items():
            turns[name].append(measuring.turn(engine))
    for name, engine in engines.items():
        require_finite(name, engine)
        seconds, worked, clean = measuring.figure(turns[name])
        found[name] |= {"ms": round(1e3 * seconds * workload.batch, 3), "clean": clean}
        found[name]["cpu_ms"] = round(1e3 * worked * workload.batch, 3)
    return {"engines": found}


def peak(engine: measuring.Engine) -> float:
    """MiB that the first steps of a new engine add at their peak."""
    measuring.give_back()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    before = measuring.status("VmRSS")
    for _ in range(measuring.PEAK_STEPS):
        engine.step()
    return measuring.status("VmHWM") - before


def plan(steps: int) -> dict[str, float]:
    """Time and memory of a plan whose noise is different at every step, ε = 3."""
    import apportion as ap

    budget = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())

    def make(number: int) -> float:
        started = time.perf_counter()
        ap.plan("du-dynamic", budget=budget, population=60_000, sample_rate=0.01, steps=number)
        return time.perf_counter() - started

    make(10)  # loads all libraries
    seconds = make(steps)
    tracemalloc.start()  # in a second plan: it makes everything slower
    make(steps)
    return {"ms": round(1e3 * seconds, 1), "mib": round(tracemalloc.get_traced_memory()[1] / 2**20, 2)}


def exponent(points: list[tuple[float, float]]) -> float | None:
    """b of y ∝ xᵇ, by least squares to the logarithms of the larger half; `None` of fewer than two points."""
    kept = [(math.log(x), math.log(y)) for x, y in sorted(points)[len(points) // 2 :]]
    if len(kept) < 2:
        return None
    middle_x, middle_y = (sum(column) / len(kept) for column in zip(*kept, strict=True))
    return sum((x - middle_x) * (y - middle_y) for x, y in kept) / sum((x - middle_x) ** 2 for x, _ in kept)


def series(axis: str, what: str) -> dict[str, list[tuple[float, float]]]:
    """For each engine its points (size, ms or MiB)."""
    found: dict[str, list[tuple[float, float]]] = {}
    for point in stored(axis):
        for engine, figures in point["engines"].items():
            found.setdefault(engine, []).append((point["size"], max(figures[what], 0.01)))  # such an axis has no zero
    return found


def pictures() -> dict[str, str]:
    """By file name, a picture of each axis that was measured."""
    found = {}
    for name, axis in AXES.items():
        if stored(name):
            lines = {
                f"{engine}, {unit}": line
                for what, unit in (("ms", "ms"), ("mib", "MiB"))
                for engine, line in series(name, what).items()
            }
            title = f"Growth with the number of {axis.label}"
            found[f"growth-{name}.svg"] = drawing.curves(title, axis.label, "ms, and MiB added at the peak", lines)
    return found


def section() -> str:
    """Of docs/performance.md; empty if nothing was measured."""
    measured = [name for name in AXES if stored(name)]
    if not measured:
        return ""
    exponents = rows(
        ["what grows", "from", "to", "", "time", "memory", "expected"],
        [
            [
                AXES[name].label,
                f"{stored(name)[0]['size']:,}",
                f"{stored(name)[-1]['size']:,}",
                engine,
                *(_shown(exponent(series(name, what)[engine])) for what in ("ms", "mib")),
                AXES[name].expected,
            ]
            for name in measured
            for engine in series(name, "ms")
        ],
    )
    shown = "\n\n".join(
        f"![Growth with the number of {AXES[name].label}](images/growth-{name}.svg)" for name in measured
    )
    days = ", ".join(sorted({point["date"] for name in measured for point in stored(name)}))
    return f"""## Growth

With `python benchmarks/growth.py` on {days}: what a step costs when one thing grows and all else is fixed. Parameters: a perceptron of
two hidden layers, batches of 32. Batch: the network papernot. Length: a transformer of four layers of width 128, batches of 16. Steps:
the plan of a schedule whose noise is different at every step, calibration included. The exponent b of cost ∝ sizeᵇ is fitted to the
larger half of the sizes: 1 is linear.

{exponents}

{shown}"""


def _shown(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"


if __name__ == "__main__":
    sys.exit(main())
