"""How the gradients of a model will be computed: which engine, and which rule for each parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from apportion.curator.gradients.one_pass import OnePass
from apportion.curator.gradients.use import Mode
from apportion.curator.probe import per_record_mode, synthetic_outputs


@dataclass(frozen=True)
class Inspection:
    """What was found on synthetic records.

    Args:
        mode: the engine that `train` will use.
        kernels: by parameter, how its per-record norms are computed; empty for the reference engines, which write all rows out.
        fallbacks: modules without a rule of their own, which run record by record.
    """

    mode: Mode
    kernels: Mapping[str, str]
    fallbacks: tuple[str, ...]


def inspect(model: nn.Module, inputs: Any, target: Any) -> Inspection:
    """Find the engine for `model` on records like (inputs, target), of which only shapes and types are used."""
    mode = per_record_mode(model, None, inputs, target)
    if mode in ("vmap", "loop"):
        return Inspection(mode, {}, ())
    engine = OnePass(model, copy_inputs=mode == "one-pass, copying inputs")
    outputs = synthetic_outputs(engine.forward, model, inputs)
    torch.stack([output.abs().sum() for output in outputs]).sum().backward()
    return Inspection(mode, engine.gradients().kernels(), engine.fallbacks)
