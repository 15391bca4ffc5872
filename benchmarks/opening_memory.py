"""The memory of opening a run: what proofs and probes take at their peak, as multiples of the weights.

    MALLOC_TRIM_THRESHOLD_=131072 python benchmarks/opening_memory.py    # a minute; the allocator returns what was freed

The model is that of `sharded_memory.py`. `peak` is the largest resident memory less what the process had with the model alone.
"""

from __future__ import annotations

from pathlib import Path

import torch
from measuring import status
from sharded_memory import make_model
from torch import nn
from torch.nn.functional import cross_entropy

from apportion.curator.records import as_records
from apportion.training.opening import require_trainable


def main() -> None:
    torch.set_num_threads(1)
    records = as_records((torch.randn(20, 64), torch.randint(0, 10, (20,))))
    require_trainable(nn.Linear(64, 10), cross_entropy, records)  # imports, and what is made once
    model = make_model()
    weights = sum(parameter.nbytes for parameter in model.parameters()) / 2**20
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    require_trainable(model, cross_entropy, records)
    peak = status("VmHWM") - before
    print(f"weights {weights:.0f} MiB, peak {peak:.0f} MiB: {peak / weights:.1f} times the weights")


if __name__ == "__main__":
    main()
