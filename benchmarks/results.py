"""What was measured, what it comes to, and what was aimed at."""

from __future__ import annotations

import hashlib
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers import PEERS

import apportion

FILE = Path(__file__).with_name("engine.json")
ROOMS = ("accounting", "curator", "strategies", "training")


@dataclass(frozen=True)
class Target:
    """For one workload, a whole private step.

    Args:
        ratio: the most it may cost, in steps of plain SGD in torch's default layout, if that is a target.
        speed_up: how many times faster than the fastest peer it must be, if that is a target.
        channels_last: the ratio in the layout channels_last, again to plain SGD in the default layout.
        memory: the most it may add at its peak, in what plain SGD adds, if that is a target.
        milliseconds: the most that it may take, if that is a target.
    """

    ratio: float | None = None
    speed_up: float | None = None
    channels_last: float | None = None
    memory: float | None = 1.5
    milliseconds: float | None = None


TARGETS = {
    "b1": Target(1.1, 1.5, channels_last=0.8),
    "papernot": Target(1.4, 2.0, channels_last=1.0),
    "b2": Target(1.2, 1.8, channels_last=1.0),
    "mlp": Target(1.5, 1.1),
    "imdb": Target(1.5, 10.0),
    "lstm": Target(1.7, 15.0),
    "transformer": Target(1.35, 1.35, memory=1.6),
    "wrn": Target(1.4, 1.5),
    "table": Target(3.0, 1.0),
    "scatter-linear": Target(1.0, 1.0),
    "logistic": Target(4.0, 1.0),
    "bert-tiny": Target(1.5, 1.0),
    "lora": Target(1.5, 1.0),
    "gpt2-small-ish": Target(1.4, 1.0),
    "resnet18": Target(1.4, 1.0),
    "one-weight": Target(memory=None, milliseconds=1.5),
}


@dataclass(frozen=True)
class Summary:
    """All processes of one workload.

    Args:
        milliseconds: of a step of plain SGD, in each process.
        ratios: for each engine, its time over that of plain SGD in the same process.
        best_ratios: the same over the better of the two layouts of plain SGD.
        cpu_ratios: as `ratios`, of what the processors worked; of no engine if it was not noted.
        peak_mb: MiB that each engine adds at its peak.
        failed: who could not run, and why.
    """

    workload: str
    milliseconds: list[float]
    ratios: dict[str, list[float]]
    best_ratios: dict[str, list[float]]
    cpu_ratios: dict[str, list[float]]
    peak_mb: dict[str, float]
    failed: dict[str, str]

    def lines(self) -> list[dict[str, Any]]:
        """For machines: one line for each engine, medians over the processes."""
        return [
            {
                "workload": self.workload,
                "engine": engine,
                "ratio": round(statistics.median(ratios), 3),
                "ratio_best": round(statistics.median(self.best_ratios[engine]), 3),
                "ratio_cpu": round(statistics.median(self.cpu_ratios[engine]), 3)
                if engine in self.cpu_ratios
                else None,
                "peak_mb": round(self.peak_mb[engine], 1) if engine in self.peak_mb else None,
            }
            for engine, ratios in self.ratios.items()
        ]

    @property
    def by_itself(self) -> str:
        """What a person gets who pins nothing: for images the layout channels last."""
        return "apportion-channels-last" if "apportion-channels-last" in self.ratios else "apportion"

    def speed_up(self, engine: str) -> float | None:
        """How many times as long the fastest peer takes as ours, in the median process."""
        peers = [self.ratios[name] for name in PEERS if name in self.ratios]
        ours = self.ratios.get(engine)
        if not peers or ours is None:
            return None
        return statistics.median(min(theirs) / own for *theirs, own in zip(*peers, ours, strict=True))

    def checks(self) -> list[tuple[str, float, float, bool]]:
        """(what, found, target, whether it is met) for all that was measured."""
        target, found = TARGETS[self.workload], []
        if target.milliseconds is not None and "apportion" in self.ratios:
            each = [ratio * base for ratio, base in zip(self.ratios["apportion"], self.milliseconds, strict=True)]
            taken = statistics.median(each)
            found.append(("apportion, ms at most", taken, target.milliseconds, taken <= target.milliseconds))
        for engine, limit in (("apportion", target.ratio), ("apportion-channels-last", target.channels_last)):
            if engine in self.ratios and limit is not None:
                ratio = statistics.median(self.ratios[engine])
                found.append((f"{engine} / sgd, at most", ratio, limit, ratio <= limit))
        if target.speed_up is not None and (speed_up := self.speed_up(self.by_itself)) is not None:
            what = f"fastest peer / {self.by_itself}, at least"
            found.append((what, speed_up, target.speed_up, speed_up >= target.speed_up))
        if target.memory is not None and {"sgd", "apportion"} <= set(self.peak_mb):
            memory = self.peak_mb["apportion"] / max(1.0, self.peak_mb["sgd"])  # below a MiB pages of the system decide
            found.append(("memory of apportion / sgd, at most", memory, target.memory, memory <= target.memory))
        return found


def summarise(record: dict[str, Any]) -> Summary:
    """Only engines that ran in every process have a ratio."""
    processes = record["processes"]
    everywhere = [name for name in processes[0] if all(name in process for process in processes)]
    defaults = [process["sgd"]["milliseconds"] for process in processes]
    bests = [
        min(process[name]["milliseconds"] for name in ("sgd", "sgd-channels-last") if name in process)
        for process in processes
    ]

    def over(bases: list[float], key: str = "milliseconds") -> dict[str, list[float]]:
        return {
            name: [process[name][key] / base for process, base in zip(processes, bases, strict=True)]
            for name in everywhere
        }

    noted = all("cpu_milliseconds" in process["sgd"] for process in processes)  # older measurements have none
    worked = over([process["sgd"]["cpu_milliseconds"] for process in processes], "cpu_milliseconds") if noted else {}
    return Summary(
        record["workload"], defaults, over(defaults), over(bests), worked, record["peak_mb"], record.get("failed", {})
    )


def append(record: dict[str, Any]) -> None:
    """Add a record to the file; none is ever dropped."""
    FILE.write_text(json.dumps([*kept(), record], indent=1) + "\n", encoding="utf-8")


def kept() -> list[dict[str, Any]]:
    """All records, in the order in which they were measured."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else []


def newest() -> dict[str, dict[str, Any]]:
    """For each workload all processes that ran the code which was measured last."""
    found: dict[str, dict[str, Any]] = {}
    for record in kept():
        known = found.get(record["workload"])
        if known is not None and known["code"] == record["code"]:
            record = {
                **record,
                "date": ", ".join(sorted({known["date"], record["date"]})),
                "processes": known["processes"] + record["processes"],
                "peak_mb": {**known["peak_mb"], **record["peak_mb"]},
                "failed": {**known["failed"], **record["failed"]},
            }
        found[record["workload"]] = record
    return {name: found[name] for name in TARGETS if name in found}


def code() -> str:
    """A fingerprint of the source that a step runs: figures of different code are not mixed."""
    folder = Path(apportion.__file__).parent
    fingerprint = hashlib.sha256()
    for path in sorted(path for room in ROOMS for path in (folder / room).rglob("*.py")):
        fingerprint.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return fingerprint.hexdigest()[:12]
