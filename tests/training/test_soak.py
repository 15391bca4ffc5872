"""A long run: memory does not grow, the ledger grows by the same amount each step, and no step takes longer than the first ones."""

import gc
import os
import statistics
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
import runs
from apportion.accounting.ledger import Ledger

STEPS = 20_000


@dataclass(frozen=True)
class Watch:
    """Fixed clipping that looks at the clock, at memory and at the size of the ledger."""

    ledger: str
    seconds: list = field(default_factory=list)
    memory: dict = field(default_factory=dict)
    size: dict = field(default_factory=dict)

    def init(self, context):
        return None

    def propose(self, state, context):
        self.seconds.append(time.perf_counter())
        if context.step % (STEPS // 10) == 0:
            gc.collect()
            self.memory[context.step] = resident_bytes()
            self.size[context.step] = Path(self.ledger).stat().st_size
        return ap.clip.Fixed(1.0).propose(None, context)

    def observe(self, state, released):
        return None


def resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to see the memory of the process")
def test_twenty_thousand_steps(tmp_path):
    torch.manual_seed(0)
    inputs = torch.randn(20, 3)
    watch = Watch(str(tmp_path / "run" / "secret" / "ledger.sqlite"))
    run = runs.train(
        nn.Linear(3, 2),
        cross_entropy,
        (inputs, (inputs.sum(1) > 0).long()),
        budget=ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record()),
        population=20,
        sample_rate=0.1,
        steps=STEPS,
        lr=0.1,
        clip=watch,
        out=tmp_path / "run",
    )
    assert run.steps == STEPS
    ledger = Ledger.open(tmp_path / "run" / "secret" / "ledger.sqlite")
    assert len(list(ledger.events())) == STEPS
    ledger.close()

    growth = watch.memory[STEPS] / watch.memory[STEPS // 10] - 1
    sizes = [watch.size[step] for step in sorted(watch.size)]
    increments = [after - before for before, after in pairwise(sizes)]
    durations = [after - before for before, after in pairwise(watch.seconds)]
    early, late = (statistics.median(part) for part in (durations[1000:5000], durations[-4000:]))
    print(
        f"memory +{100 * growth:.2f} %, ledger {statistics.mean(increments) / (STEPS / 10):.0f} bytes a step, ", end=""
    )
    print(f"median step {1000 * early:.2f} ms at the beginning, {1000 * late:.2f} ms at the end")
    assert growth < 0.05
    assert max(increments) < 1.1 * min(increments)
    assert late < 1.3 * early
