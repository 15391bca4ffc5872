"""How much memory a private step takes, and how many records fit into a limit.

A step holds, at its peak,

    standing + BASE + PARAMETERS·parameters + LIVE·live(b) + CONVOLUTION·largest(b)        for a physical batch of b records:

`standing` is the model and the engine's copy of it. `live(b)` are the tensors that exist at one time: activations, noted inputs and
output gradients of b records, workspaces of the kernels, sums and noise. `largest(b)` is what one convolution reads and writes, of all
the one with most. They are counted, not modelled: the curator itself answers a request on two micro-batches of synthetic records,
while every tensor that torch makes is noted, for b = 1, 4, 16, … until the records take more than the workspaces, which stop growing.
From there on both are straight lines. The factors are fitted to benchmarks/memory.py --check, once for all models.

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

from apportion.curator.curator import Curator
from apportion.curator.gradients.engine import Engine, EngineChoice, build_engine
from apportion.curator.randomness import Randomness
from apportion.curator.records import Records
from apportion.curator.tree import batch_size, call_model, map_tensors, tensor_leaves
from apportion.errors import InvalidArgument
from apportion.event import Event
from apportion.execution import MAX_MICRO_BATCH, SMALL_MICRO_BATCH, Execution, Mode, format_bytes
from apportion.models.check import copy_model
from apportion.models.record_tracer import leave_uncompiled
from apportion.models.synthetic import find_runnable, fix_seed, model_device, synthetic_batch, synthetic_batches
from apportion.releases import ClippedSum
from apportion.request import Request

BASE_BYTES = 3 << 20
"""Buffers of the mathematical libraries and small objects."""
LIVE_FACTOR = 1.25
"""Memory of the process for each byte of live tensors. The C library puts tensors of different sizes side by side, and what is free
between two that live on cannot always be used again."""
CONVOLUTION_FACTOR = 2
"""The mathematical library convolves copies in a layout of its own, which torch does not see, and keeps the blocks it took for them."""
PARAMETER_FACTOR = 4.5
"""The gradient that stays with every parameter, and blocks of that size that are kept from one step to the next."""
LINEAR_FROM_BYTES = 64 << 20
"""Bytes of records after which live(b) is taken for a straight line: the kernels' workspaces have a few MiB and no more."""

DEFAULT_ACTIVATION_BYTES = 128 << 20
"""Bytes of activations in a micro-batch if nobody says; a private step takes about twice as much. On large models a larger micro-batch
is no faster, because it leaves the caches."""
SMALL_ACTIVATION_BYTES = 4 << 20
"""Bytes of activations that stay in a core's cache: where 1,024 records have no more, what a micro-batch costs by itself shows."""

QUICK_NUMBERS = 1 << 19
"""Numbers of a micro-batch up to which one thread is as quick as two: torch starts others from 32,768 numbers of one tensor on."""
QUICK_PRODUCTS = 1 << 26
"""Multiplications of a forward pass up to which it is so: about a millisecond of one core."""

CONVOLUTION_OPERATORS = (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default)


@dataclass(frozen=True)
class MemoryModel:
    """The memory of a private step by the number of records that are held at one time.

    Args:
        standing: bytes of the model and of the engine's copy.
        added: at least two pairs (records, bytes that a step adds at its peak), both growing.
    """

    standing: int
    added: tuple[tuple[int, int], ...]

    @property
    def bytes_per_record(self) -> float:
        """What one more record takes in a large batch."""
        (fewer, less), (more, most) = self.added[-2:]
        return (most - less) / (more - fewer)

    def bytes_at(self, records: int) -> int:
        """What a step takes with so many records at one time, with the model."""
        return self.standing + self.added_at(records)

    def added_at(self, records: int) -> int:
        """The same without the model and its copy: what the first steps add to a process that is ready to train."""
        sizes, peaks = zip(*self.added, strict=True)
        beyond: float = max(0, records - sizes[-1]) * self.bytes_per_record
        within: float = np.interp(records, sizes, peaks).item()
        return round(within + beyond)

    def largest_batch(self, limit: int) -> int:
        """The most records that fit into `limit` bytes, a multiple of 8 if more than 8."""
        if self.bytes_at(1) > limit:
            raise InvalidArgument(
                "memory_limit",
                format_bytes(limit),
                f"a private step of this model takes {format_bytes(self.bytes_at(1))} with a single record",
                "Allow more, or use a smaller model",
            )
        fits, too_many = 1, MAX_MICRO_BATCH + 1
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            fits, too_many = (middle, too_many) if self.bytes_at(middle) <= limit else (fits, middle)
        return fits if fits <= 8 else fits - fits % 8


def resolve_micro_batch(
    execution: Execution, model: nn.Module, choice: Mode | EngineChoice, inputs: Any, expected_batch_size: float
) -> Execution:
    """`execution` with a number for `micro_batch`, for records like `inputs`: what fits into its memory limit; without one, the usual
    number, or fewer where these would take too much."""
    if execution.memory_limit is not None:
        largest = measure_memory(model, choice, inputs).largest_batch(int(execution.memory_limit))
        return replace(execution, micro_batch=largest, memory_limit=None)
    if execution.micro_batch != "auto":
        return execution
    of_one = activation_bytes(model, choice, inputs)
    most = max(1, DEFAULT_ACTIVATION_BYTES // of_one)
    small = SMALL_ACTIVATION_BYTES * most >= DEFAULT_ACTIVATION_BYTES * SMALL_MICRO_BATCH
    chosen = min(execution.physical_batch(expected_batch_size, small=small), most)
    if execution.threads == "auto" and _is_quick(model, of_one, chosen):
        execution = replace(execution, threads=1)
    return replace(execution, micro_batch=chosen)


def _is_quick(model: nn.Module, of_one: int, records: int) -> bool:
    """Whether so many records have so few numbers, and make so few operations, that one thread is done before others have begun.

    Each number of an activation takes at most as many multiplications as a weight has numbers for each of its outputs.
    """
    numbers = records * of_one // 4
    widest = max((one.numel() // max(1, len(one)) for one in model.parameters() if one.dim() > 1), default=1)
    return numbers <= QUICK_NUMBERS and numbers * widest <= QUICK_PRODUCTS


def activation_bytes(model: nn.Module, choice: Mode | EngineChoice, inputs: Any) -> int:
    """What one record like `inputs` has of activations, and of gradients where they are materialised; at least 1.

    Counted in a forward pass of one and of two synthetic records, which is much quicker than a `MemoryModel`.
    """
    subject = copy_model(model).train()

    def made(few: Any, records: int) -> int:
        with fix_seed(0, model_device(subject)), LiveTensors() as live:
            call_model(subject, repeat_records(few, records))
        peak: int = live.peak
        return peak

    candidates = synthetic_batches("inputs", inputs, subject)
    _, of_one = find_runnable(lambda few: made(few, 2) - made(few, 1), candidates, "The model", inputs)
    if str(choice) in ("vmap", "loop"):
        of_one += sum(parameter.nbytes for parameter in subject.parameters())
    return max(1, of_one)


def measure_memory(model: nn.Module, choice: Mode | EngineChoice, inputs: Any) -> MemoryModel:
    """Count the tensors of private steps of `model` on synthetic records shaped like `inputs`, one record."""
    subject = copy_model(model).train()
    synthetic = synthetic_batch(subject, inputs)
    engine = build_engine(subject, choice)
    _added_bytes(engine, synthetic, 1)  # what is made once, tables for instance, is made now
    added = [(1, _added_bytes(engine, synthetic, 1))]
    while len(added) < 2 or (added[-1][1] < added[0][1] + LINEAR_FROM_BYTES and added[-1][0] < MAX_MICRO_BATCH):
        records = min(4 * added[-1][0], MAX_MICRO_BATCH)
        added.append((records, max(_added_bytes(engine, synthetic, records), added[-1][1])))
    own = [*subject.parameters(), *subject.buffers()]
    return MemoryModel(2 * sum(tensor.nbytes for tensor in own), tuple(added))


def repeat_records(batch: Any, records: int) -> Any:
    """The records of `batch` again and again, until there are `records`."""
    places = torch.arange(records) % batch_size(batch)
    return map_tensors(lambda tensor: tensor[places], batch)


def surrogate_loss(outputs: Any, _: Any) -> Tensor:
    """A loss that holds as much as cross-entropy, for outputs of any shape."""
    parts = [tensor for tensor in tensor_leaves(outputs) if tensor.is_floating_point()]
    return torch.stack([functional.log_softmax(part.flatten(1), dim=1).square().sum() for part in parts]).sum()


class _NoCharges:
    """Synthetic records have nobody to protect."""

    def charge(self, event: Event) -> None:
        pass


def _added_bytes(engine: Engine, synthetic: Any, records: int) -> int:
    """Bytes that a process needs while a curator clips and sums two micro-batches of `records` records."""

    def batch(indices: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[Any, Tensor]:
        return repeat_records(synthetic, len(indices)), torch.zeros(len(indices))

    held = Records(2 * records, batch, (map_tensors(lambda tensor: tensor[0], synthetic), torch.zeros(())))
    execution = Execution(micro_batch=records, engine="auto")
    curator = Curator(held, engine, _NoCharges(), Randomness.seeded(0), execution)
    with leave_uncompiled(), LiveTensors() as live:
        curator.answer(Request(1.0, 1.0, 1.0, (ClippedSum(1.0),)), surrogate_loss)
    parameters = sum(parameter.nbytes for parameter in engine.model.parameters())
    records_and_workspaces: float = LIVE_FACTOR * live.peak + CONVOLUTION_FACTOR * live.largest_convolution
    return round(BASE_BYTES + PARAMETER_FACTOR * parameters + records_and_workspaces)


class LiveTensors(TorchDispatchMode):
    """Counts the bytes of all tensors that operators make while it is entered, until each is freed.

    Attributes:
        peak: the most that there were at one time.
        largest_convolution: the most that one convolution read and wrote.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = self.largest_convolution = self._now = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), named: Mapping[str, Any] | None = None
    ) -> Any:
        result = function(*arguments, **(named or {}))
        made = _dense_leaves(result)
        given = {
            tensor.untyped_storage()._cdata for tensor in _dense_leaves((arguments, named))
        }  # a view is nothing new
        for tensor in made:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._sizes and storage._cdata not in given:
                self._sizes[storage._cdata] = storage.nbytes()
                self._now += storage.nbytes()
                weakref.finalize(storage, self._note_freed, storage._cdata)
        self.peak = max(self.peak, self._now)
        if function in CONVOLUTION_OPERATORS:
            touched = sum(tensor.nbytes for tensor in (*arguments[:2], *made))
            self.largest_convolution = max(self.largest_convolution, touched)
        return result

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # it would be imported to be skipped, which takes two seconds; see `leave_uncompiled`

    def _note_freed(self, storage: int) -> None:
        self._now -= self._sizes.pop(storage, 0)


def _dense_leaves(tree: Any) -> list[Tensor]:
    return [tensor for tensor in tensor_leaves(tree) if tensor.layout == torch.strided]
