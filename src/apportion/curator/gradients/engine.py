"""What the curator asks of an engine, and the engines there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor, nn

from apportion.curator.clipping import Gradients, Rows
from apportion.curator.gradients.one_pass import OnePass
from apportion.curator.gradients.reference import ReferenceGradients
from apportion.curator.gradients.use import Mode


class Engine(Protocol):
    """`follow` the model at the beginning of a step; for each micro-batch `forward` it, run a backward pass of the sum of its losses,
    then fetch the `gradients` of its records, once."""

    model: nn.Module

    @property
    def mode(self) -> Mode: ...

    def follow(self) -> None: ...

    def forward(self, inputs: Any) -> Any: ...

    def record_losses(self, loss_fn: Callable[[Any, Any], Tensor], outputs: Any, targets: Any) -> Tensor: ...

    def require_own_parameters(self, loss: Tensor) -> None: ...

    def gradients(self) -> Gradients | Rows: ...


def build_engine(model: nn.Module, mode: Mode) -> Engine:
    """The engine of this name for a model."""
    if mode == "vmap" or mode == "loop":
        return ReferenceGradients(model, mode)
    return OnePass(model, mode)


__all__ = ["Engine", "Mode", "build_engine"]
