"""The memory of each of two ranks in a step, with the whole model on both and with a model that `fully_shard` has divided.

    python benchmarks/sharded_memory.py    # minutes; writes benchmarks/sharded_memory.json

Each rank is a process of its own, over gloo. A step is what a run does: a draw, clipped sums, noise, Adam, and the gathering of the
weights. `peak` is the largest resident memory in two steps less what the process had before the model was made, in MiB, and as multiples of
the weights themselves. Opening a run, with its proofs and probes on copies of the whole model, is left out and takes more. `trimmed` has
glibc return freed memory at once (MALLOC_TRIM_THRESHOLD_), so that memory in use is counted; `default` is as people run it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from measuring import status
from torch import distributed, multiprocessing, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

from apportion.curator.curator import Curator
from apportion.curator.gradients.engine import build_engine
from apportion.curator.owners import RecordOwners
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.curator.shard import ShardOwners
from apportion.distributed import find_ranks
from apportion.distributed.sharded_model import find_sharded
from apportion.execution import Execution
from apportion.releases import ClippedSum
from apportion.request import Request

RESULT = Path(__file__).with_suffix(".json")
WIDTH, LAYERS, RECORDS, STEPS = 2048, 10, 256, 2
MICRO_BATCHES = {"one micro-batch": 128, "four micro-batches": 16}


class Unpaid:
    """Charges nobody: there is no private record here."""

    def charge(self, event: Any) -> None:
        pass


def make_model() -> nn.Sequential:
    hidden = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), *hidden, nn.Linear(WIDTH, 10))


def run_rank(rank: int, place: str, sharded: bool, micro_batch: int, found: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    records = as_records((torch.randn(RECORDS, 64), torch.randint(0, 10, (RECORDS,))))
    before = status("VmRSS")
    torch.manual_seed(0)
    model = make_model()
    weights = sum(parameter.nbytes for parameter in model.parameters()) / 2**20
    if sharded:
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        fully_shard(model)
    shards = find_sharded(model)
    if shards is not None:
        shards.gather()
    ranks, whole = find_ranks(shards=shards), model if shards is None else shards.whole
    curator = Curator(
        records,
        build_engine(whole, "one-pass", lent=sharded),
        Unpaid(),
        Randomness.seeded(0, rank),
        Execution(micro_batch),
        owners=ShardOwners(RecordOwners(RECORDS), rank, 2),
        ranks=ranks,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    for _ in range(STEPS):
        gradient = dict(curator.answer(Request(0.5, 1.0, 128.0, (ClippedSum(1.0),)), cross_entropy).gradient)
        for name, parameter in model.named_parameters():
            part = gradient.pop(name)
            parameter.grad = part if shards is None else shards.parts[name].distributed(part)
        optimizer.step()
        optimizer.zero_grad()
        if shards is not None:
            shards.gather()
    peak = status("VmHWM") - before
    Path(f"{found}.{rank}").write_text(json.dumps({"peak": round(peak), "weights": round(weights)}))
    distributed.barrier()


def measure(sharded: bool, micro_batch: int) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        found = f"{folder}/found"
        multiprocessing.spawn(run_rank, (f"{folder}/meeting", sharded, micro_batch, found), nprocs=2)
        return [json.loads(Path(f"{found}.{rank}").read_text()) for rank in range(2)]


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1] == "sharded", int(sys.argv[2]))))
        return
    settings = {"default": {}, "trimmed": {"MALLOC_TRIM_THRESHOLD_": "131072"}}
    result: dict[str, Any] = {"parameters": sum(parameter.numel() for parameter in make_model().parameters())}
    for memory, variables in settings.items():
        for pieces, size in MICRO_BATCHES.items():
            for kind in ("whole", "sharded"):
                command = [sys.executable, __file__, kind, str(size)]
                out = subprocess.run(
                    command, env={**os.environ, **variables}, capture_output=True, text=True, check=True
                )
                ranks = json.loads(out.stdout.splitlines()[-1])
                peaks = [one["peak"] for one in ranks]
                times = [round(one["peak"] / one["weights"], 2) for one in ranks]
                result[f"{memory}, {pieces}, {kind}"] = {"peak": peaks, "of weights": times}
                print(memory, pieces, kind, peaks, times, flush=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
