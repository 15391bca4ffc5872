"""What an engine tells whoever follows the records through it (`proof.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

Call = tuple[str, int]
"""A layer, and which of its calls in a forward pass."""


class Witness(Protocol):
    """Looks on while an engine runs on tensors without values."""

    def require_own_input(self, call: Call, value: Tensor) -> None:
        """Raise if a layer is called with something that belongs to no record."""
        ...

    def require_rows(self, what: str, value: Tensor, dimension: int) -> None:
        """Raise unless row i along `dimension` is made of record i alone, for every i, and nothing else is in it."""
        ...

    def kernel(self, outputs: Callable[[], tuple[Tensor, ...]], *inputs: Tensor) -> tuple[Tensor, ...]:
        """In place of a kernel of the engine's own that is known to keep records apart: its outputs, and gradients for its inputs."""
        ...

    def made(self, shape: tuple[int, ...], dimension: int, like: Tensor) -> Tensor:
        """A tensor whose records are along `dimension`."""
        ...

    def alone(self, path: str, call: int, inputs: Any) -> Any:
        """In place of a module that runs one record after the other: what its call number `call` returns."""
        ...
