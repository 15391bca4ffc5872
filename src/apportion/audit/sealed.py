"""A curator whose raw tensors cannot be looked at from outside.

Records, per-record outputs and losses, gradients and running sums are `Sealed` tensors. Any access to one (an operator, a method, an
attribute, a conversion, printing it) raises `SealedAccess` unless the curator is at work. Only the mechanism turns a sealed sum into
an ordinary tensor. So a strategy that got hold of a raw value, by whatever way, cannot use it.

This shows mistakes; it is no prison. Code that calls torch's internals to switch subclasses off gets around it, and so does code that
reads the memory of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._mode_utils import no_dispatch

from apportion.curator import mechanisms
from apportion.curator.clipping import Gradients, Rows
from apportion.curator.curator import Curator, Draw, LossFunction
from apportion.curator.gradients.reference import ReferenceGradients
from apportion.curator.randomness import Stream
from apportion.curator.records import Batch, Records
from apportion.curator.tree import map_tensors
from apportion.releases import FirstGain, LowestLoss
from apportion.request import Released, Request
from apportion.training.session import Setup

_Tree = TypeVar("_Tree")
_inside: ContextVar[bool] = ContextVar("inside the curator", default=False)


_LOOKED_UP_BY_TORCH = ("__class__", "__torch_function__", "__torch_dispatch__")
"""By these names torch finds the methods that refuse."""


class SealedAccess(BaseException):
    """A raw value was touched outside the curator. No `except Exception` hides it."""


@contextmanager
def inside() -> Iterator[None]:
    """The curator is at work: sealed tensors are ordinary ones."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


class Sealed(Tensor):
    """A tensor that only the curator may use. What is computed from it is sealed too."""

    def __getattribute__(self, name: str) -> Any:
        if not _inside.get() and name not in _LOOKED_UP_BY_TORCH:
            raise SealedAccess(f"a raw tensor was asked for {name!r} outside the curator")
        return super().__getattribute__(name)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, arguments: Any = (), named: dict[str, Any] | None = None
    ) -> Any:
        if not _inside.get():
            raise SealedAccess(
                f"a raw tensor was given to {getattr(function, '__name__', function)} outside the curator"
            )
        return super().__torch_function__(function, types, arguments, named or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Callable[..., Any], types: Any, arguments: Any = (), named: dict[str, Any] | None = None
    ) -> Any:
        """Below all operators, also for constructors such as torch.tensor(x), which __torch_function__ is not asked about."""
        if not _inside.get():
            raise SealedAccess(f"a raw tensor was given to {function} outside the curator")
        with no_dispatch():
            return function(*arguments, **(named or {}))

    # Python and NumPy look these up on the type and would not ask __getattribute__.
    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return "Sealed(...)"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise SealedAccess("a raw tensor was copied or stored")

    def __array__(self, dtype: Any = None) -> NDArray[Any]:
        raise SealedAccess("a raw tensor was turned into an array")

    def __dlpack__(self, *arguments: Any, **options: Any) -> Any:
        raise SealedAccess("a raw tensor was exported")


def seal(tree: _Tree) -> _Tree:
    """The same structure, its tensors sealed."""
    with inside():
        sealed: _Tree = map_tensors(_sealed_tensor, tree)
    return sealed


def _sealed_tensor(tensor: Tensor) -> Tensor:
    if tensor.requires_grad:
        return tensor.as_subclass(Sealed)  # keeps the graph
    return Tensor._make_subclass(Sealed, tensor)  # keeps no ordinary tensor as its base


def unseal(tree: Any) -> Any:
    """The same structure with ordinary tensors. Works inside the curator only."""
    with no_dispatch():
        return map_tensors(lambda tensor: tensor.as_subclass(Tensor), tree)


class DeclassifyingMechanisms:
    """The one way out: noise makes an ordinary tensor, or an index, of sealed sums."""

    def add_gaussian_noise(self, exact_sum: Tensor, standard_deviation: float, noise: Stream, divisor: float) -> Tensor:
        return mechanisms.add_gaussian_noise(unseal(exact_sum), standard_deviation, noise, divisor)

    def noisy_argmin(self, totals: Tensor, release: LowestLoss, noise: Stream) -> int:
        return mechanisms.noisy_argmin(unseal(totals), release, noise)

    def above_threshold(self, gains: Tensor, release: FirstGain, noise: Stream) -> int | None:
        return mechanisms.above_threshold(unseal(gains), release, noise)


class SealedGradients(ReferenceGradients):
    """The reference engine behind the seal: opens what it is given, seals what it hands on."""

    def forward(self, inputs: Any, views: int = 1) -> Any:
        return seal(super().forward(unseal(inputs), views))

    def record_losses(self, loss_fn: LossFunction, outputs: Any, targets: Any) -> Tensor:
        return seal(super().record_losses(loss_fn, unseal(outputs), unseal(targets)))

    def gradients(self) -> dict[str, Tensor]:
        return seal(super().gradients())


class SealedDraw(Draw):
    """An open draw with sealed sums."""

    def __init__(self, draw: Draw):
        vars(self).update(vars(draw))
        self._sums, self._totals = seal(self._sums), seal(self._totals)

    def add(self, gradients: Gradients | Rows | None, members: Tensor, losses: Sequence[Tensor] = ()) -> None:
        with inside():
            super().add(gradients, members, losses)

    def release(self) -> Released:
        with inside():
            return super().release()


class SealedCurator(Curator):
    """A curator that opens its seals only while it answers."""

    def open(self, request: Request) -> Draw:
        return SealedDraw(super().open(request))

    def answer(self, request: Request, loss_fn: LossFunction) -> Released:
        with inside():
            return super().answer(request, loss_fn)


def sealed(setup: Setup) -> Setup:
    """The same run behind seals. Its engine writes gradients out, because only those can be sealed."""
    mode: Literal["vmap", "loop"] = "loop" if setup.choice.mode == "loop" else "vmap"
    return replace(
        setup,
        records=_sealed_records(setup.records),
        engine=SealedGradients(setup.model, mode),
        build_curator=partial(SealedCurator, mechanisms=DeclassifyingMechanisms()),
    )


def _sealed_records(records: Records) -> Records:
    """All records are read once and sealed; a batch of them is sealed too, as everything that is computed from them."""
    everyone = seal(records.batch(np.arange(len(records))))

    def batch(indices: NDArray[np.int64]) -> Batch:
        chosen = torch.from_numpy(indices)
        pair: Batch = map_tensors(lambda tensor: tensor.index_select(0, chosen), everyone)
        return pair

    found = Records(len(records), batch, records.example)
    found.views = records.views
    return found
