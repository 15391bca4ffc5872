"""The cost of a private step, ours against the peers, on eight workloads, and with --more on eight others.

    make bench                                            # builds .venv-bench with Opacus and runs this
    python benchmarks/engine.py --quick --json            # one process of three rounds; a line of JSON for each engine
    python benchmarks/engine.py --workloads b1,mlp
    python benchmarks/engine.py --more                    # those of more_workloads.py
    python benchmarks/engine.py --write                   # only writes docs/performance.md from what was measured

A step is all that one costs: draw, clip, noise, charge and update (peers.py). How it is measured stands in measuring.py. A full run starts
several processes for each workload and adds its figures to benchmarks/engine.json. One process does not fix a ratio, so a quick run is
neither kept nor judged.

Exit code 2 if a required engine is missing or cannot run, 1 if a full run misses a target.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import platform
import sys
from pathlib import Path
from typing import Any

PROCESSES, ROUNDS, QUICK_ROUNDS = 3, 7, 3


def main() -> int:
    options = parse()
    if options.write:
        import performance_page

        performance_page.write()
        return 0
    try:
        import opacus  # noqa: F401
    except ImportError as error:
        print(f"error: a required peer is missing ({error.name}); run `make bench`", file=sys.stderr)
        return 2
    results = [measure(name, options) for name in options.workloads]
    if any(broken for broken, _ in results):
        return 2
    return 0 if all(met for _, met in results) else 1


def parse() -> argparse.Namespace:
    from more_workloads import MORE
    from workloads import WORKLOADS

    known = WORKLOADS | MORE

    def names(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := set(chosen) - set(known):
            raise argparse.ArgumentTypeError(f"{sorted(unknown)}; there are {', '.join(known)}")
        return chosen

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=names, help="some of them, with commas between")
    parser.add_argument("--more", action="store_true", help="the workloads of more_workloads.py")
    parser.add_argument("--quick", action="store_true", help="one process, few rounds, required engines only")
    parser.add_argument("--required", action="store_true", help="required engines only")
    parser.add_argument("--json", action="store_true", help="print lines of JSON")
    parser.add_argument("--processes", type=int, help=f"for each workload; {PROCESSES} if not quick")
    parser.add_argument("--rounds", type=int, help=f"in each process; {ROUNDS} if not quick")
    parser.add_argument("--batch-scale", type=float, default=1.0, help="smaller batches to try things out; not kept")
    parser.add_argument("--threads", type=int, default=2, help="fewer on a busy machine; not kept")
    parser.add_argument("--write", action="store_true", help="measure nothing, write docs/performance.md")
    options = parser.parse_args()
    options.workloads = options.workloads or list(MORE if options.more else WORKLOADS)
    options.processes = options.processes or (1 if options.quick else PROCESSES)
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    return options


def measure(name: str, options: argparse.Namespace) -> tuple[bool, bool]:
    """(whether a required engine could not run, whether all targets are met) of one workload."""
    import measuring
    from peers import OURS, REQUIRED, engines_for
    from results import append, code, summarise
    from workloads import WORKLOADS

    engines = engines_for(measuring.ALL[name], only_required=options.quick or options.required)
    record: dict[str, Any] = {"workload": name, "code": code(), **surroundings(), "rounds": options.rounds}
    record |= {"processes": [], "peak_mb": {}, "failed": {}}
    for _ in range(options.processes):
        result = measuring.run(
            "time", name, engines, rounds=options.rounds, scale=options.batch_scale, threads=options.threads
        )
        record["processes"].append(result["figures"])
        record["failed"].update(result["failed"])
    for engine in engines:
        if engine not in record["failed"]:
            result = measuring.run(
                "peak", name, [engine], scale=options.batch_scale, threads=options.threads, steady=True
            )
            record["peak_mb"].update(result["figures"])
            record["failed"].update(result["failed"])
    required = REQUIRED if name in WORKLOADS else ("sgd", *OURS)  # a peer may not know a model of another library
    broken = [engine for engine in required if engine in record["failed"]]
    for engine, reason in record["failed"].items():
        word = "error" if engine in broken else "left out"
        print(f"{word}: {engine} on {name}: {reason}", file=sys.stderr, flush=True)
    if "sgd" in broken:
        return True, False
    summary = summarise(record)
    for line in summary.lines():
        print(json.dumps(line) if options.json else text(line), flush=True)
    if options.quick or options.batch_scale != 1 or options.threads != 2:
        return bool(broken), True
    if not broken:
        append(record)
    for what, found, target, met in summary.checks():
        print(f"{'met   ' if met else 'MISSED'} {name}: {what} {target}: {found:.2f}", file=sys.stderr, flush=True)
    return bool(broken), all(met for *_, met in summary.checks())


def surroundings() -> dict[str, str]:
    """What the figures depend on besides the code."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "date": datetime.date.today().isoformat(),
        "processor": models[0] if models else platform.machine(),
        "torch": importlib.metadata.version("torch"),
        "opacus": importlib.metadata.version("opacus"),
    }


def text(line: dict[str, Any]) -> str:
    peak = "" if line["peak_mb"] is None else f"{line['peak_mb']:8.0f} MiB"
    best = f"{line['ratio_best']:8.2f} of the best SGD"
    worked = "" if line["ratio_cpu"] is None else f"{line['ratio_cpu']:8.2f} of its processor time"
    return f"{line['workload']:<14} {line['engine']:<24} {line['ratio']:8.2f} of SGD {worked} {best} {peak}"


if __name__ == "__main__":
    sys.exit(main())
