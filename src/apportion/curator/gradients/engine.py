"""What the curator asks of an engine, and the engines there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from apportion.curator.clipping import Gradients, Rows
from apportion.curator.gradients.one_pass import LayerCall, OnePass
from apportion.curator.gradients.reference import ReferenceGradients
from apportion.execution import Mode


class Engine(Protocol):
    """`sync_weights` at the beginning of a step; for each micro-batch `forward` it, run a backward pass of the sum of its losses,
    then fetch the `gradients` of its records, once: of a record with several views, which are rows behind each other, their sum."""

    model: nn.Module

    @property
    def mode(self) -> Mode: ...

    def sync_weights(self) -> None: ...

    def forward(self, inputs: Any, views: int = 1) -> Any: ...

    def record_losses(self, loss_fn: Callable[[Any, Any], Tensor], outputs: Any, targets: Any) -> Tensor: ...

    def require_own_parameters(self, loss: Tensor) -> None: ...

    def gradients(self) -> Gradients | Rows: ...


@dataclass(frozen=True)
class EngineChoice:
    """How the gradients of a model are computed.

    Args:
        mode: the engine.
        alone: modules that run one record after the other inside an engine that runs all others together.
        shared: calls of layers on inputs that belong to no record, as embeddings of positions.
        losses_together: whether the losses of the records are evaluated together.
        reasons: one sentence for each part that does not run in the fastest way.
        path: on which records were traced through this engine (`proof.py`); `None` where they run alone.
    """

    mode: Mode
    alone: tuple[str, ...] = ()
    shared: tuple[LayerCall, ...] = ()
    losses_together: bool = True
    reasons: tuple[str, ...] = ()
    path: Any = field(default=None, compare=False, repr=False)

    @property
    def proves_any_size(self) -> bool:
        """Whether all of the model itself was traced and does not look at how many records there are, which `vmap` hides from it."""
        return (
            self.mode not in ("vmap", "loop")
            and not self.alone
            and self.path is not None
            and not self.path.looks_at_count
        )

    def __str__(self) -> str:
        parts = [self.mode, *(f"{path} alone" for path in self.alone)]
        return ", ".join(parts if self.losses_together else [*parts, "losses alone"])


BuiltEngine = OnePass | ReferenceGradients


def build_engine(model: nn.Module, choice: Mode | EngineChoice, *, lent: bool = False) -> BuiltEngine:
    """The engine that was chosen for a model, which may be there for it alone (`OnePass`)."""
    if isinstance(choice, str):
        choice = EngineChoice(choice)
    if choice.mode == "vmap" or choice.mode == "loop":
        return ReferenceGradients(model, choice.mode)
    return OnePass(model, choice.mode, choice.alone, choice.shared, choice.losses_together, lent)


__all__ = ["BuiltEngine", "Engine", "EngineChoice", "build_engine"]
