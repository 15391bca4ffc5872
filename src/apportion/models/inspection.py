"""How the gradients of a model will be computed: which engine, which rule for each parameter, what it takes in memory and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from apportion.curator.clipping import clip_and_sum
from apportion.curator.gradients.engine import Engine, build_engine
from apportion.curator.gradients.one_pass import OnePass, RecordGradients
from apportion.curator.tree import batch_size, call_model
from apportion.execution import DEFAULT_MICRO_BATCH, Execution, Mode
from apportion.models.check import copy_model
from apportion.models.engine_choice import choose_engine
from apportion.models.memory import measure_memory, repeat_records, resolve_micro_batch, surrogate_loss, synthetic_batch
from apportion.models.synthetic import model_device
from apportion.releases import ClippedSum

_ROUNDS = 5


@dataclass(frozen=True)
class Inspection:
    """What was found on synthetic records.

    Args:
        mode: the engine that `train` will use.
        kernels: by parameter, how its per-record norms are computed; empty for the reference engines, which write all rows out.
        reasons: why the engine, a module or the loss is not run in the fastest way.
        fallbacks: modules without a rule of their own, which run record by record.
        physical_batch: records that are held at one time, from the memory limit if there is one.
        memory: bytes that training is predicted to take at its peak with that batch, model included, records not.
        memory_per_record: bytes that one more record takes.
        relative_cost: time of a private gradient over that of an ordinary forward and backward pass. A quick estimate on this machine,
            without draw, noise and update.
    """

    mode: Mode
    reasons: tuple[str, ...]
    kernels: Mapping[str, str]
    fallbacks: tuple[str, ...]
    physical_batch: int
    memory: int
    memory_per_record: int
    relative_cost: float


def inspect(model: nn.Module, inputs: Any, target: Any, memory_limit: int | str | None = None) -> Inspection:
    """Find the engine for `model` on records like (inputs, target), of which only shapes and types are used."""
    execution = Execution(memory_limit=memory_limit)
    choice = choose_engine(model, None, inputs, target)
    memory = measure_memory(model, choice, inputs)
    if execution.memory_limit is None:
        physical = resolve_micro_batch(execution, model, choice, inputs, DEFAULT_MICRO_BATCH).physical_batch(
            DEFAULT_MICRO_BATCH
        )
    else:
        physical = memory.largest_batch(int(execution.memory_limit))
    subject = copy_model(model).train()
    engine, records = build_engine(subject, choice), synthetic_batch(subject, inputs)
    gradients = _run_private(engine, records)
    return Inspection(
        mode=choice.mode,
        reasons=choice.reasons,
        kernels=gradients.kernels() if isinstance(gradients, RecordGradients) else {},
        fallbacks=tuple(path for path in engine.fallbacks if path not in choice.alone)
        if isinstance(engine, OnePass)
        else (),
        physical_batch=physical,
        memory=memory.bytes_at(physical),
        memory_per_record=round(memory.bytes_per_record),
        relative_cost=_relative_cost(engine, repeat_records(records, min(physical, memory.added[-1][0]))),
    )


def _run_private(engine: Engine, records: Any) -> Any:
    targets = torch.zeros(batch_size(records), device=model_device(engine.model))
    engine.record_losses(surrogate_loss, engine.forward(records), targets).sum().backward()
    return engine.gradients()


def _relative_cost(engine: Engine, records: Any) -> float:
    """The two take turns; the quickest round of each counts, because whatever disturbs makes it slower."""

    def private() -> None:
        gradients = _run_private(engine, records)
        with torch.no_grad():
            clip_and_sum(gradients, [ClippedSum(1.0)])

    def ordinary() -> None:
        surrogate_loss(call_model(engine.model, records), None).backward()
        engine.model.zero_grad()

    rounds = [(_time(private), _time(ordinary)) for _ in range(_ROUNDS + 1)][1:]  # the first warms up
    return min(ours for ours, _ in rounds) / min(theirs for _, theirs in rounds)


def _time(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
