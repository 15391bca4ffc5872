"""How much memory a private step takes, and how many records fit into a limit.

A step holds, at its peak,

    standing + BASE + ALLOCATOR·live(b)        for a physical batch of b records:

`standing` is the model and the engine's copy of it. `live(b)` are the tensors that exist at one time: activations, noted inputs and
output gradients of b records, workspaces of the kernels and of convolutions, sums and noise. They are counted, not modelled: the
curator itself answers a request on two micro-batches of synthetic records, while every tensor that torch makes is noted, for b = 1, 4,
16, … until the records take more than the workspaces, which stop growing. From there on live(b) is a straight line.

Only the shapes and types of a record are used, never a value. The state of the optimiser comes on top: one number a parameter for
momentum, two for Adam.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from apportion.curator.compatibility import copy_of
from apportion.curator.curator import LARGEST, Curator, Execution
from apportion.curator.gradients.engine import Mode, build_engine
from apportion.curator.randomness import Randomness
from apportion.curator.records import Records
from apportion.curator.sizes import as_text
from apportion.curator.synthetic import synthetic_outputs
from apportion.curator.tree import batch_size, call_model, map_tensors, tensors_of
from apportion.errors import InvalidArgument
from apportion.request import ClippedSum, Event, Request

ALLOCATOR = 1.7
"""Memory of the process for each byte of live tensors. The C library puts tensors of different sizes side by side, and what is free
between two that live on cannot always be used again. From benchmarks/memory.py --check: 1.0 to 2.4, for most models 1.4 to 2.1."""
BASE = 3 << 20
"""Buffers of the mathematical libraries and small objects."""
ENOUGH = 32 << 20
"""Bytes of records after which live(b) is taken for a straight line: the kernels' workspaces have a few MiB and no more."""

CONVOLUTIONS = (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default)
"""The mathematical library computes them on copies in a layout of its own, which torch does not see."""


@dataclass(frozen=True)
class MemoryModel:
    """The memory of a private step by the number of records that are held at one time.

    Args:
        standing: bytes of the model and of the engine's copy.
        live: at least two pairs (records, bytes of tensors at the peak), both growing.
    """

    standing: int
    live: tuple[tuple[int, int], ...]

    @property
    def bytes_per_record(self) -> float:
        """What one more record takes in a large batch."""
        (fewer, less), (more, most) = self.live[-2:]
        return ALLOCATOR * (most - less) / (more - fewer)

    def bytes_at(self, records: int) -> int:
        """What a step takes with so many records at one time, with the model."""
        return self.standing + self.added_at(records)

    def added_at(self, records: int) -> int:
        """The same without the model and its copy: what the first steps add to a process that is ready to train."""
        sizes, peaks = zip(*self.live, strict=True)
        beyond = max(0, records - self.live[-1][0]) * self.bytes_per_record
        within: float = np.interp(records, sizes, peaks).item()
        return round(BASE + ALLOCATOR * within + beyond)

    def largest_batch(self, limit: int) -> int:
        """The most records that fit into `limit` bytes, a multiple of 8 if more than 8."""
        if self.bytes_at(1) > limit:
            raise InvalidArgument(
                "memory_limit",
                as_text(limit),
                f"a private step of this model takes {as_text(self.bytes_at(1))} with a single record",
                "Allow more, or use a smaller model",
            )
        fits, too_many = 1, LARGEST + 1
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            fits, too_many = (middle, too_many) if self.bytes_at(middle) <= limit else (fits, middle)
        return fits if fits <= 8 else fits - fits % 8


def with_known_batch(execution: Execution, model: nn.Module, mode: Mode, inputs: Any) -> Execution:
    """`execution` with a number for `micro_batch`: what fits into its memory limit, for records like `inputs`."""
    if execution.memory_limit is None:
        return execution
    largest = memory_model(model, mode, inputs).largest_batch(int(execution.memory_limit))
    return replace(execution, micro_batch=largest, memory_limit=None)


def memory_model(model: nn.Module, mode: Mode, inputs: Any) -> MemoryModel:
    """Count the tensors of private steps of `model` on synthetic records shaped like `inputs`, one record."""
    subject = copy_of(model).train()
    synthetic = synthetic_batch(subject, inputs)
    step = _Step(subject, mode, synthetic)
    step.peak(1)  # what is made once, tables for instance, is made now
    live = [(1, step.peak(1))]
    while len(live) < 2 or (live[-1][1] < live[0][1] + ENOUGH and live[-1][0] < LARGEST):
        records = min(4 * live[-1][0], LARGEST)
        live.append((records, max(step.peak(records), live[-1][1])))
    own = [*subject.parameters(), *subject.buffers()]
    return MemoryModel(2 * sum(tensor.nbytes for tensor in own), tuple(live))


def synthetic_batch(model: nn.Module, inputs: Any) -> Any:
    """A few synthetic records like `inputs`, on which `model` runs."""
    tried: list[Any] = []

    def run(batch: Any) -> Any:
        tried.append(map_tensors(torch.clone, batch))
        return call_model(model, batch)

    synthetic_outputs(run, model, inputs)
    return tried[-1]


def repeated(batch: Any, records: int) -> Any:
    """The records of `batch` again and again, until there are `records`."""
    places = torch.arange(records) % batch_size(batch)
    return map_tensors(lambda tensor: tensor[places], batch)


def stand_in_loss(outputs: Any, _: Any) -> Tensor:
    """A loss that holds as much as cross-entropy, for outputs of any shape."""
    parts = [tensor for tensor in tensors_of(outputs) if tensor.is_floating_point()]
    return torch.stack([functional.log_softmax(part.flatten(1), dim=1).square().sum() for part in parts]).sum()


class _NoCharges:
    """Synthetic records have nobody to protect."""

    def charge(self, event: Event) -> None:
        pass


class _Step:
    """A curator's whole answer on synthetic records."""

    def __init__(self, model: nn.Module, mode: Mode, synthetic: Any):
        self._engine, self._synthetic = build_engine(model, mode), synthetic
        self._request = Request(1.0, 1.0, 1.0, (ClippedSum(1.0),))

    def peak(self, records: int) -> int:
        """Bytes of the tensors that live at one time, while two micro-batches of `records` records are clipped and summed."""

        def batch(indices: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[Any, Tensor]:
            return repeated(self._synthetic, len(indices)), torch.zeros(len(indices))

        held = Records(2 * records, batch, (map_tensors(lambda tensor: tensor[0], self._synthetic), torch.zeros(())))
        curator = Curator(
            held, self._engine, _NoCharges(), Randomness.seeded(0), Execution(micro_batch=records, engine="auto")
        )
        with LiveTensors() as live:
            curator.answer(self._request, stand_in_loss)
        peak: int = live.peak
        return peak


class LiveTensors(TorchDispatchMode):
    """Counts the bytes of all tensors that operators make while it is entered, until each is freed."""

    def __init__(self) -> None:
        super().__init__()
        self.peak, self._now = 0, 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), named: Mapping[str, Any] | None = None
    ) -> Any:
        result = function(*arguments, **(named or {}))
        made = tensors_of(result)
        for tensor in made:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._sizes:
                self._sizes[storage._cdata] = storage.nbytes()
                self._now += storage.nbytes()
                weakref.finalize(storage, self._freed, storage._cdata)
        copies = sum(tensor.nbytes for tensor in (*arguments[:2], *made)) if function in CONVOLUTIONS else 0
        self.peak = max(self.peak, self._now + copies)
        return result

    def _freed(self, storage: int) -> None:
        self._now -= self._sizes.pop(storage, 0)
