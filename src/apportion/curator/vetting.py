"""Records of another shape than the first one: before they run together, the model is tried on synthetic records of that shape.

Before a run the probe sees the shape of one record. A data set may hold others, and a model that keeps records apart for one shape may mix
them for another: `reshape(T, b, d)` in place of a transposition is right for T = 1 only. Where the model does so, records of that shape
are left to the reference, which runs them alone. The decision rests on shapes and synthetic values, on no value of a record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from apportion.curator.clipping import Gradients, Rows
from apportion.curator.engine_choice import per_record_mode
from apportion.curator.gradients.engine import Engine, Mode, build_engine
from apportion.curator.probe import probe_model
from apportion.curator.tree import batch_size, map_tensors, tensors_of


class VettedShapes:
    """An engine that runs records together where it is known that they stay apart, and one by one otherwise.

    Args:
        engine: runs the records of a micro-batch together.
        example: the inputs of one record, for whose shape this engine was chosen.
        chosen: by the library; an engine that a person pinned is trusted with models that look at values.
    """

    def __init__(self, engine: Engine, example: Any, *, chosen: bool = True):
        self.model, self._together, self._chosen = engine.model, engine, chosen
        self._current = engine
        self._alone: Engine | None = None
        self._apart: dict[tuple[Any, ...], bool] = {_shape(example): True}

    @property
    def mode(self) -> Mode:
        return self._together.mode

    def follow(self) -> None:
        self._together.follow()
        if self._alone is not None:
            self._alone.follow()

    def forward(self, inputs: Any) -> Any:
        self._current = self._together if self._stay_apart(inputs) else self._one_by_one()
        return self._current.forward(inputs)

    def record_losses(self, loss_fn: Callable[[Any, Any], Tensor], outputs: Any, targets: Any) -> Tensor:
        return self._current.record_losses(loss_fn, outputs, targets)

    def require_own_parameters(self, loss: Tensor) -> None:
        self._current.require_own_parameters(loss)

    def gradients(self) -> Gradients | Rows:
        return self._current.gradients()

    def _stay_apart(self, inputs: Any) -> bool:
        shape = _shape(map_tensors(lambda leaf: leaf[0] if isinstance(leaf, Tensor) and len(leaf) else leaf, inputs))
        if shape not in self._apart:
            if not all(isinstance(leaf, Tensor) for leaf in tree_leaves(inputs)) or not batch_size(inputs):
                return True  # nothing to try it on, or nobody in it
            self._apart[shape] = self._try(map_tensors(lambda tensor: tensor[0], inputs))
        return self._apart[shape]

    def _try(self, record: Any) -> bool:
        try:
            probe_model(self.model, record)
            per_record_mode(self.model, None, record, torch.zeros(()), self.mode, trusted=not self._chosen)
        except Exception:  # refused, or whatever else goes wrong on this shape: records alone cannot meet
            return False
        return True

    def _one_by_one(self) -> Engine:
        if self._alone is None:
            self._alone = build_engine(self.model, "loop")
            self._alone.follow()
        return self._alone


def _shape(record: Any) -> tuple[Any, ...]:
    return tuple(tensor.shape for tensor in tensors_of(record))
