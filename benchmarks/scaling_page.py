"""The figures of docs/scaling.md, from benchmarks/scaling.json and benchmarks/noise.json: nothing on that page is typed by hand.

python benchmarks/scaling_page.py        # writes them into the page
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/scaling.md"
KEPT = {name: ROOT / f"benchmarks/{name}.json" for name in ("scaling", "noise")}
QUIET, ENOUGH = 1.0, 5

DEVICES, PARAMETERS, BYTES = 64, 10**9, 4
THREADS, LINK = 8, 25e9
"""Assumed: threads that make noise beside a device, and bytes a second that the link of a device sends in one direction."""
MESSAGES = 3
"""Of one number each, in a step: the state is the same, it is charged, all have arrived."""

NOISE = {
    "torch_float32": "torch `normal_`, float32, new",
    "torch_float32_in_place": "torch `normal_`, float32, in place",
    "torch_float64": "torch `normal_`, float64, new",
    "normals_1": "ours, float64, new, 1 thread",
    "normals_2": "ours, float64, new, 2 threads",
    "noise_in_place_1": "`add_gaussian_noise`, float32 in place, 1 thread",
    "noise_in_place_2": "`add_gaussian_noise`, float32 in place, 2 threads",
}


def caution(kept: dict[str, Any], clean: int) -> str:
    """What must be said of figures from a machine that others used."""
    load = kept["load_average"]["before"][0]
    machine = kept["machine"]
    told = (
        f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}, load average {load:.1f} before."
    )
    if load <= QUIET and clean >= ENOUGH:
        return told
    return f"{told} **The machine was in use: wall times and ratios are provisional.**"


def noise_table(noise: dict[str, Any]) -> str:
    """Nanoseconds a value, and the ratio of wall times to torch's default."""
    sizes = noise["sizes"]
    lines = [
        "| "
        + " | ".join(
            ["ns a value, CPU of all threads (wall time ÷ `normal_`)", *(f"{one['values']:,}" for one in sizes)]
        )
        + " |",
        "|---" * (len(sizes) + 1) + "|",
    ]
    for key, name in NOISE.items():
        figures = [f"{one[key]['cpu_ns']:.1f} ({one[key]['wall_ratio']:.2f})" for one in sizes]
        lines.append(f"| {name} | {' | '.join(figures)} |")
    large = [one for one in sizes if one["values"] >= 10**6]
    clean = min(one["normals_2"]["clean_rounds"] for one in large)
    worst = max(one["normals_2"]["wall_ratio"] for one in large)
    target = noise["target_wall_ratio"]
    verdict = "met" if worst <= target else "missed"
    if clean < ENOUGH:
        verdict = f"not decided: {clean} clean rounds"
    aim = f"The aim, at most {target} of `normal_` with two threads from a million values on: {worst:.2f}, {verdict}."
    return "\n".join([*lines, "", f"{caution(noise, clean)} {aim}"])


def speed_table(scaling: dict[str, Any]) -> str:
    """Steps a second, overheads, bytes and memory."""
    lines = [
        "| workload | parameters | steps/s, 1 process: DDP, ours | 2 processes: DDP, ours | overhead 1, 2 | growth "
        "| bytes ÷ DDP's | MB a rank, 2 processes: DDP, ours |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in scaling["workloads"]:
        one, two = row["processes_1"], row["processes_2"]
        speeds = [
            f"{part['steps_per_second']['ddp']:g}, {part['steps_per_second']['apportion']:g}" for part in (one, two)
        ]
        peak = two["peak_megabytes"]
        lines.append(
            f"| {row['workload']} | {row['parameters']:,} | {speeds[0]} | {speeds[1]} | {one['overhead']:.2f}, {two['overhead']:.2f} | "
            f"{row['growth']:.2f} | {row['bytes_ratio']:.4f} | {peak['ddp']}, {peak['apportion']} |"
        )
    clean = min(row[f"processes_{ranks}"]["clean_rounds"] for row in scaling["workloads"] for ranks in (1, 2))
    return "\n".join([*lines, "", caution(scaling, clean)])


@dataclass(frozen=True)
class Costs:
    """Seconds of what a step of a large model is made of, as measured on two cores."""

    noise: float
    reduced: float
    charge: float
    message: float

    @classmethod
    def of(cls, scaling: dict[str, Any], noise: dict[str, Any]) -> Costs:
        costs, largest = scaling["costs"], max(noise["sizes"], key=lambda one: one["values"])
        value = largest["noise_in_place_1"]["cpu_ns"] * 1e-9
        return cls(value, costs["all_reduce_seconds_per_byte"], costs["charge_seconds"], costs["message_seconds"])

    def parts(self, *, threads: int, sharded: bool, link: float | None) -> dict[str, float]:
        """Seconds of a step with `DEVICES` devices and `PARAMETERS` parameters that are there because it is private, or shared by all."""
        ring = 2 * (DEVICES - 1) / DEVICES * BYTES * PARAMETERS
        made = PARAMETERS / (DEVICES if sharded else 1)
        return {
            "noise": made * self.noise / threads,
            "all-reduce": ring * (self.reduced if link is None else 1 / link),
            "charge and messages": self.charge + MESSAGES * math.ceil(math.log2(DEVICES)) * self.message,
        }


def projection(costs: Costs) -> str:
    """The table, with the largest part of each row named."""
    cases = {
        "as measured: one thread a rank, gloo on loopback": {"threads": 1, "sharded": False, "link": None},
        f"{THREADS} threads a rank, a link of {LINK / 1e9:g} GB/s": {
            "threads": THREADS,
            "sharded": False,
            "link": LINK,
        },
        "the same, each rank with the noise of its own part of the parameters": {
            "threads": THREADS,
            "sharded": True,
            "link": LINK,
        },
    }
    lines = ["| | noise | all-reduce | charge and messages | the largest |", "|---|---|---|---|---|"]
    for name, settings in cases.items():
        parts = costs.parts(**settings)
        shown = " | ".join(_shown(seconds) for seconds in parts.values())
        lines.append(f"| {name} | {shown} | {max(parts, key=parts.__getitem__)} |")
    used = (
        f"From {costs.noise * 1e9:.1f} ns of one core for a normal that is added, {costs.reduced * 1e9:.2f} ns for a byte of an "
        f"all-reduce between two processes of one machine, {costs.charge * 1e3:.1f} ms for a durable charge and "
        f"{costs.message * 1e3:.2f} ms for a message."
    )
    parts = costs.parts(**cases[list(cases)[1]])
    ours = {
        name: seconds for name, seconds in parts.items() if name != "all-reduce"
    }  # which training without privacy has, too
    first = max(ours, key=ours.__getitem__)
    times = ours[first] / parts["all-reduce"]
    named = f"**Of what privacy adds, the first bottleneck is: {first}**, {times:.1g} times the all-reduce in the second row."
    return "\n".join([*lines, "", f"{used} {named}"])


def _shown(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1e3:.1f} ms"


def filled(page: str, scaling: dict[str, Any], noise: dict[str, Any]) -> str:
    """The page with its figures."""
    parts = {
        "noise": noise_table(noise),
        "speed": speed_table(scaling),
        "projection": projection(Costs.of(scaling, noise)),
    }
    for name, text in parts.items():
        page = _put(page, name, text)
    return page


def _put(page: str, name: str, text: str) -> str:
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    page, times = re.subn(f"{begin}.*?{end}", lambda _: f"{begin}\n\n{text}\n\n{end}", page, flags=re.DOTALL)
    assert times == 1, f"the page has {times} places for {name}"
    return page


def read() -> tuple[dict[str, Any], dict[str, Any]]:
    scaling, noise = (json.loads(path.read_text(encoding="utf-8")) for path in KEPT.values())
    return scaling, noise


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), *read()), encoding="utf-8")
