"""CPU seconds to price one schedule, ours against the peers, in one process.

    make bench                                   # builds .venv-bench with the peers and runs this
    python benchmarks/accounting.py --json out.json

The schedule is Du et al.'s growing μ (q = 256/60000, T = 5000, δ = 1/600000, z falling from 2.9 to 0.87), grouped into D different
multipliers. Each figure is the CPU time of one cold price: caches are emptied before. dp_accounting and Opacus are required (exit code 2
without them); prv_accountant is used if it is there. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # CPU seconds, not wall time on many cores

import argparse
import json
import sys
import time
import warnings
from collections import Counter

RATE, STEPS, DELTA, START, END = 256 / 60_000, 5_000, 1 / 600_000, 2.9, 0.87
TARGET_CALIBRATION_SECONDS = 1.0


def schedule(distinct: int, steps: int = STEPS) -> list[tuple[float, int]]:
    """`distinct` multipliers on the geometric schedule, with how often each occurs."""
    counts = [steps // distinct + (k < steps % distinct) for k in range(distinct)]
    return [(START * (END / START) ** ((k + 0.5) / distinct), count) for k, count in enumerate(counts)]


def ours(groups: list[tuple[float, int]]) -> float:
    from apportion.accounting.accountant import PrivacyLossAccountant
    from apportion.event import Event

    return PrivacyLossAccountant().epsilon({Event(RATE, z): n for z, n in groups}, DELTA)


def dp_accounting_pld(groups: list[tuple[float, int]]) -> float:
    import dp_accounting
    from dp_accounting import pld

    events = [
        dp_accounting.SelfComposedDpEvent(
            dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(z)), n
        )
        for z, n in groups
    ]
    return float(pld.PLDAccountant().compose(dp_accounting.ComposedDpEvent(events)).get_epsilon(DELTA))


def dp_accounting_rdp(groups: list[tuple[float, int]]) -> float:
    import dp_accounting
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant()
    for z, n in groups:
        event = dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(z))
        accountant.compose(dp_accounting.SelfComposedDpEvent(event, n))
    return float(accountant.get_epsilon(DELTA))


def opacus_prv(groups: list[tuple[float, int]]) -> float:
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(z, RATE, n) for z, n in groups]
    return float(accountant.get_epsilon(DELTA))


def prv_accountant(groups: list[tuple[float, int]]) -> float:
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    mechanisms = [PoissonSubsampledGaussianMechanism(noise_multiplier=z, sampling_probability=RATE) for z, _ in groups]
    counts = [n for _, n in groups]
    accountant = PRVAccountant(prvs=mechanisms, max_self_compositions=counts, eps_error=0.01, delta_error=DELTA / 1000)
    return float(accountant.compute_epsilon(DELTA, counts)[2])


REQUIRED = {"dp_accounting PLD": dp_accounting_pld, "dp_accounting RDP": dp_accounting_rdp, "opacus PRV": opacus_prv}
LIMITS = {"prv_accountant": 20}  # it needs 20 MB and 1.6 s for each different multiplier


def measure(price, groups) -> dict[str, float]:
    started = time.process_time()
    epsilon = price(groups)
    return {"epsilon": epsilon, "cpu_seconds": time.process_time() - started}


def cold() -> None:
    from apportion.accounting import grid, loss

    grid._grid.cache_clear()
    loss.sketch.cache_clear()


def calibration_seconds(steps: int) -> tuple[float, float]:
    """(CPU seconds, ε reached / ε asked for) of calibrating `steps` different multipliers to ε = 1.2."""
    from apportion.accounting.accountant import PrivacyLossAccountant, count_events
    from apportion.accounting.calibration import calibrate
    from apportion.event import Event

    shape = [0.3 ** (t / steps) for t in range(1, steps + 1)]
    cold()
    started = time.process_time()
    scale = calibrate(PrivacyLossAccountant(), shape, sample_rate=RATE, epsilon=1.2, delta=DELTA)
    seconds = time.process_time() - started
    reached = PrivacyLossAccountant().epsilon(Counter(count_events(Event(RATE, scale * r) for r in shape)), DELTA)
    return seconds, reached / 1.2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="also write the figures to FILE")
    parser.add_argument("--quick", action="store_true", help="leave out the slowest peers' largest cases")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    try:
        import dp_accounting  # noqa: F401
        import opacus  # noqa: F401
    except ImportError as error:
        print(f"error: a required peer is missing ({error.name}); run `make bench`", file=sys.stderr)
        return 2
    engines = {"apportion PLD": ours, **REQUIRED}
    try:
        import prv_accountant as _  # noqa: F401

        engines["prv_accountant"] = prv_accountant
    except ImportError:
        print("prv_accountant is not installed: left out", file=sys.stderr)
    ours(schedule(3, 10))
    for name, price in engines.items():  # imports are not measured
        if name != "apportion PLD":
            price([(2.0, 3)])
    rows = []
    for distinct in (1, 20, 100):
        for name, price in engines.items():
            if distinct > LIMITS.get(name, 10**9) or (
                options.quick and distinct == 100 and name not in ("apportion PLD",)
            ):
                continue
            cold()
            rows.append({"engine": name, "distinct": distinct, "steps": STEPS, **measure(price, schedule(distinct))})
            print(_line(rows[-1]), flush=True)
    for distinct in (5_000, 50_000, 500_000):
        cold()
        rows.append(
            {
                "engine": "apportion PLD",
                "distinct": distinct,
                "steps": distinct,
                **measure(ours, schedule(distinct, distinct)),
            }
        )
        print(_line(rows[-1]), flush=True)
    seconds, reached = calibration_seconds(STEPS)
    print(f"calibration of 5,000 different steps: {seconds:.3f} CPU s, reaches {reached:.4f} of the target")
    found = {(row["engine"], row["distinct"]): row["cpu_seconds"] for row in rows}
    checks = {
        "ours at 5,000 different steps costs less than dp_accounting's PLD at 20": found["apportion PLD", 5_000]
        < found["dp_accounting PLD", 20],
        "calibration of 5,000 different steps takes less than 1 CPU second": seconds < TARGET_CALIBRATION_SECONDS,
        "calibration ends in [0.998, 1] of the target": 0.998 <= reached <= 1.0,
    }
    for claim, holds in checks.items():
        print(f"{'met   ' if holds else 'MISSED'} {claim}")
    if options.json:
        content = {
            "rows": rows,
            "calibration": {"distinct": STEPS, "cpu_seconds": seconds, "reached": reached},
            "checks": checks,
        }
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
    return 0 if all(checks.values()) else 1


def _line(row: dict[str, object]) -> str:
    return (
        f"{row['engine']:<18} {row['distinct']:>7} different  ε = {row['epsilon']:.4f}  {row['cpu_seconds']:9.3f} CPU s"
    )


if __name__ == "__main__":
    sys.exit(main())
