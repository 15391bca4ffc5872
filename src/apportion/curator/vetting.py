"""Records of another shape than the first one: the model is tried on synthetic records of that shape before they run together.

Before a run the probe sees the shape of one record. A data set may hold others, and a model that keeps records apart for one shape may
mix them for another: `reshape(T, b, d)` in place of a transposition is right for T = 1 only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from apportion.curator.clipping import Gradients, Rows
from apportion.curator.gradients.engine import Engine, Mode
from apportion.curator.probe import probe_model
from apportion.curator.tree import batch_size, map_tensors, tensors_of
from apportion.errors import ApportionError, UnsupportedModel


class VettedShapes:
    """An engine that refuses to run records of a shape together for which the model mixes them. Alone they are not refused.

    Args:
        engine: runs the records of a micro-batch together.
        example: the inputs of one record, for whose shape the model was probed.
    """

    def __init__(self, engine: Engine, example: Any):
        self._engine, self.model = engine, engine.model
        self._refusals: dict[tuple[Any, ...], str] = {_shape(example): ""}

    @property
    def mode(self) -> Mode:
        return self._engine.mode

    def follow(self) -> None:
        self._engine.follow()

    def forward(self, inputs: Any) -> Any:
        if batch_size(inputs) > 1:
            self._vet(map_tensors(lambda tensor: tensor[0], inputs))
        return self._engine.forward(inputs)

    def record_losses(self, loss_fn: Callable[[Any, Any], Tensor], outputs: Any, targets: Any) -> Tensor:
        return self._engine.record_losses(loss_fn, outputs, targets)

    def require_own_parameters(self, loss: Tensor) -> None:
        self._engine.require_own_parameters(loss)

    def gradients(self) -> Gradients | Rows:
        return self._engine.gradients()

    def _vet(self, record: Any) -> None:
        shape = _shape(record)
        if shape not in self._refusals:
            try:
                probe_model(self.model, record)
                self._refusals[shape] = ""
            except ApportionError as error:
                self._refusals[shape] = str(error)
        if reason := self._refusals[shape]:
            raise UnsupportedModel(reason)


def _shape(record: Any) -> tuple[Any, ...]:
    return tuple(tensor.shape for tensor in tensors_of(record))
