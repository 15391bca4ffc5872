"""Writes docs/performance.md, its pictures and the short table of the README from what the benchmarks have kept.

The sections on growth, busy machines and compilers are in the files that measure them; where nothing was kept, a section is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import beside
import compiled
import drawing
import growth
import memory
from more_workloads import MORE
from page_tables import NOTHING, ranged, rows, whole
from peers import ENGINES, OURS, PEERS
from results import FILE, Summary, newest, summarise
from workloads import WORKLOADS

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
PICTURES = PAGE.with_name("images")
README = Path(__file__).parents[1] / "README.md"
OPENING, CLOSING = "<!-- performance -->", "<!-- end of performance -->"
PROCESSOR_TIME = """## Processor time, in steps of plain SGD

What the threads worked, whether or not they ran side by side. Workloads of which it was not noted are left out."""
SHORT = {
    "b1": "CNN (MNIST)",
    "papernot": "small CNN (MNIST)",
    "b2": "CNN (CIFAR)",
    "wrn": "WRN-16-4",
    "transformer": "transformer",
    "lstm": "LSTM",
    "imdb": "word embeddings",
    "mlp": "wide MLP",
}
"""The workloads of the README, and what they are called there."""
DESCRIPTIONS = {
    "b1": "MNIST network B1 of Lin et al. as printed, 152,618 parameters",
    "papernot": "MNIST network of Papernot et al., 26,010 parameters",
    "b2": "CIFAR-10 network B2 of Lin et al., 550,570 parameters",
    "mlp": "784-1000-1000-10",
    "imdb": "mean of 256 word embeddings, vocabulary 10,000, two linear layers",
    "lstm": "names of 15 characters, LSTM of width 128",
    "transformer": "4 layers of width 256, 128 words",
    "wrn": "WRN-16-4 with group normalisation, 32 × 32 pixels",
    "table": "MLP 100-64-2",
    "scatter-linear": "one layer on 3,969 features",
    "logistic": "one layer, 30-2",
    "bert-tiny": "BERT of 4 layers of width 128, 64 words",
    "lora": "the same with adapters of rank 8",
    "gpt2-small-ish": "GPT-2 of 6 layers of width 512, 128 words, 24.1 million parameters",
    "resnet18": "ResNet-18 with group normalisation, 64 × 64 pixels",
    "one-weight": "a single weight: the fixed cost of a step",
}


def write() -> None:
    """The page, its pictures, and the short table of the README."""
    for path, text in content().items():
        path.write_text(text, encoding="utf-8")


def content() -> dict[Path, str]:
    """All that is written, from what was kept."""
    records = newest()
    if not records:
        raise SystemExit(f"error: {FILE.name} holds no figures; run `make bench` first")
    summaries = [summarise(record) for record in records.values()]
    pictured = {
        summary.workload: {
            engine: (min(ratios), statistics.median(ratios), max(ratios))
            for engine in (*OURS, "sgd-channels-last", *PEERS)
            if (ratios := summary.ratios.get(engine))
        }
        for summary in summaries
    }
    label = "time over plain SGD in the default layout (less is better)"
    readme = README.read_text(encoding="utf-8")
    before, rest = readme.split(OPENING)
    _, after = rest.split(CLOSING, 1)
    return {
        PAGE: page(list(records.values()), summaries),
        PICTURES / "performance.svg": drawing.ranges("Cost of a private step", label, pictured),
        **{PICTURES / name: picture for name, picture in growth.pictures().items()},
        README: f"{before}{OPENING}\n\n{short_table(summaries)}\n\n{CLOSING}{after}",
    }


def short_table(summaries: list[Summary]) -> str:
    """For the README: what a person gets who pins nothing, and the fastest peer, in steps of the faster plain SGD."""
    known = {summary.workload: summary for summary in summaries}
    shown = [(label, known[name]) for name, label in SHORT.items() if name in known]
    ours = [f"**{statistics.median(summary.best_ratios[summary.by_itself]):.2f}**" for _, summary in shown]
    peers = [
        f"{min(statistics.median(summary.best_ratios[peer]) for peer in PEERS if peer in summary.ratios):.2f}"
        for _, summary in shown
    ]
    head = ["", *(label for label, _ in shown)]
    return rows(head, [["Apportion", *ours], ["the fastest of Opacus and `torch.func`", *peers]])


def page(records: list[dict], summaries: list[Summary]) -> str:
    def measured(key: str) -> str:
        return ", ".join(sorted({record[key] for record in records}))

    workloads = rows(
        ["workload", "model", "batch", "plain SGD, ms", "processes", "measured", "source"],
        [
            [
                summary.workload,
                DESCRIPTIONS[summary.workload],
                _batch(summary.workload),
                f"{(middle := statistics.median(summary.milliseconds)):.{0 if middle >= 10 else 2}f}",
                str(len(summary.milliseconds)),
                record["date"],
                record["code"],
            ]
            for record, summary in zip(records, summaries, strict=True)
        ],
    )
    worked = tables(summaries, lambda summary, engine: ranged(summary.cpu_ratios.get(engine)))
    processor_section = f"\n{PROCESSOR_TIME}\n\n{worked}\n" if worked else ""
    images = [summary for summary in summaries if "sgd-channels-last" in summary.ratios]
    targets = rows(
        ["workload", "what", "target", "found", ""],
        [
            [summary.workload, what, f"{target:g}", f"{found:.2f}", "met" if met else "**missed**"]
            for summary in summaries
            for what, found, target, met in summary.checks()
        ],
    )
    pinned = ", ".join(
        f"{found:.2f} ({summary.workload})"
        for summary in summaries
        if summary.by_itself != "apportion" and (found := summary.speed_up("apportion")) is not None
    )
    sections = [memory_text() if memory.FILE.exists() else "", growth.section(), beside.section(), compiled.section()]
    memory_section, *further = (f"\n\n{section}" if section else "" for section in sections)
    return f"""# Performance

<!-- Written by `python benchmarks/engine.py --write`; edit benchmarks/performance_page.py instead. -->

What does privacy cost in time and memory? Everything below was measured with `make bench` on two threads of {measured("processor")}
(torch {measured("torch")}, Opacus {measured("opacus")}). The table has the day on which each workload was measured, and a fingerprint of
the source. Ratios carry over to other machines better than milliseconds, but not exactly.

![Time of a step over plain SGD, for each workload and engine](images/performance.svg)

{workloads}

A step is everything: a Poisson draw by index, clipping to norm 1, noise, the charge to the account, the update. Plain SGD draws its
batches in the same way. Apportion takes coins and noise from a cryptographic generator; the peers use torch's. Our engine was developed
on the first eight workloads; the others are in tables of their own.

## Time, in steps of plain SGD

Median over processes [minimum–maximum]. Plain SGD uses torch's default layout.

{tables(summaries, lambda summary, engine: ranged(summary.ratios.get(engine)))}
{processor_section}
## Time, in steps of the better plain SGD

For images the layout channels_last is often faster, with and without privacy. Here the faster of the two plain SGDs is 1. Other workloads
have only one.

{tables(images, lambda summary, engine: ranged(summary.best_ratios.get(engine)))}

## Memory added at the peak of a step, MiB

{tables(summaries, lambda summary, engine: whole(summary.peak_mb.get(engine)))}{memory_section}{"".join(further)}

## Targets

By default the engine uses the layout channels last for images; that is what is compared with the fastest peer. With the layout pinned to
torch's default, the fastest peer takes {pinned} times as long.

{targets}
{misses()}
## Left out

{left_out(summaries)}

## How it was measured

- One process for each workload and repetition, in which the engines take turns, after two steps to warm up. Every process is kept.
- A turn counts if the scheduler let the process's threads wait for less than 3 % of it. The figure of a process is the median of the
  turns that count, or of the five best if fewer do.
- Time is divided by the number of records drawn, because Poisson batches differ in size, and stated for the expected batch.
- Memory is measured in a separate process for each engine: what two steps add to the process once model, records and engine are built.
  Blocks of 128 KiB and more go back to the system as soon as they are free (`MALLOC_MMAP_THRESHOLD_`). If the C library is left to
  learn what to keep, equal runs differ: plain SGD on imdb took 9 or 23 MiB, and the ratio to it was 3.5 or 1.45.
- One process does not determine a ratio: figures vary from process to process. Read the ranges.
- The peers run as documented, whereas our engine was developed on the first eight workloads.
- Opacus is not run in the layout channels_last: there the gradients of its convolutions are wrong in version 1.6.0, because `unfold2d`
  relies on the last two strides. Book-keeping as in fastDP is not measured: it is not on the package index.
"""


def left_out(summaries: list[Summary]) -> str:
    """Who could not run where, and what it said."""
    found = [
        f"- {engine} on {summary.workload}: {reason}"
        for summary in summaries
        for engine, reason in summary.failed.items()
    ]
    return "\n".join(found or ["Every engine that was asked to run a workload could."])


def misses() -> str:
    """What was written by hand about missed targets, with profiles: `benchmarks/misses.md`."""
    path = Path(__file__).with_name("misses.md")
    return f"\n{path.read_text(encoding='utf-8').strip()}\n" if path.exists() else ""


def memory_text() -> str:
    found = memory.stored()["curves"]
    batches = sorted({row["batch"] for row in found})
    known = {(row["way"], row["batch"]): row["peak_mb"] for row in found}
    lines = rows(
        ["batch", *map(str, batches)], [[way, *(whole(known.get((way, b))) for b in batches)] for way in memory.WAYS]
    )
    return f"""### Against the size of the batch

B1 again, with `python benchmarks/memory.py`. Materialised: all per-record gradients at once, by `torch.func`. Micro-batched: ours with
`Execution(micro_batch={memory.MICRO_BATCH})`. One-pass: ours with its defaults, at most about 600 records at a time.

![Memory against the size of the batch](images/memory.svg)

{lines}

### Predicted

`Execution(memory_limit=...)` chooses the physical batch by a [prediction](data.md#memory). The table shows what
`python benchmarks/memory.py --check` measured, divided by what was predicted, at three physical batches in a logical one of three times
the size, and at the middle one in a logical batch of twelve times the size, which should not matter. Below 1
the prediction is on the safe side; beyond {memory.TOLERANCE:.0%} it is **bold**.
The rest is due to the C library's allocator: the same run may take a tenth more or less.

{predictions()}"""


def predictions() -> str:
    found = memory.stored()["predictions"]
    names = dict.fromkeys(row["workload"] for row in found)
    return rows(
        ["workload", "small", "middle", "large", "middle, four times the logical batch"],
        [[name, *(_predicted(row) for row in found if row["workload"] == name)] for name in names],
    )


def _predicted(row: dict[str, Any]) -> str:
    shown = f"{row['ratio']:.2f}"
    shown = shown if abs(row["ratio"] - 1) <= memory.TOLERANCE else f"**{shown}**"
    return f"{shown} ({row['physical']})"


def tables(summaries: list[Summary], cell: Callable[[Summary, str], str]) -> str:
    """A table of the workloads on which the engine was developed, and one of the others."""
    groups = (WORKLOADS, MORE)
    found = [table([one for one in summaries if one.workload in group], cell) for group in groups]
    return "\n\n".join(one for one in found if one)


def table(summaries: list[Summary], cell: Callable[[Summary, str], str]) -> str:
    """Engines down, workloads across; engines that ran nowhere are left out, and workloads of which nothing is known."""
    shown = [one for one in summaries if any(cell(one, engine) != NOTHING for engine in ENGINES)]
    found = [[engine, *(cell(summary, engine) for summary in shown)] for engine in ENGINES]
    head = ["engine", *(summary.workload for summary in shown)]
    return rows(head, [row for row in found if set(row[1:]) != {NOTHING}]) if shown else ""


def _batch(name: str) -> str:
    workload = (WORKLOADS | MORE)[name]
    return f"{workload.batch}" + (f" in pieces of {workload.micro_batch}" if workload.micro_batch else "")
