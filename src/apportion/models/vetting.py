"""An engine that runs records together only where it is proved that they stay apart, and one by one otherwise.

A proof holds for records of one shape and type, for the training flags of the modules, for attributes and buffers of the model as they
were, and, where the model looks at it, for one number of records. A data set may hold records of other shapes, and a model that keeps
records apart for one shape may mix them for another: `reshape(T, b, d)` in place of a transposition is right for T = 1 only. So before a
micro-batch of a new kind runs together, the proof is renewed; where it fails, records of that kind are left to the reference, which runs
them alone. The decision rests on public facts: shapes and synthetic values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from apportion.curator.clipping import Gradients, Rows
from apportion.curator.gradients.engine import Engine, EngineChoice, build_engine
from apportion.curator.gradients.fallback import OtherOutput
from apportion.curator.gradients.losses import record_losses
from apportion.curator.gradients.model_walk import ModelWalk
from apportion.curator.gradients.module_state import ModuleState
from apportion.curator.gradients.one_pass import OnePass
from apportion.curator.tree import batch_size, map_tensors, tensor_leaves
from apportion.execution import Mode
from apportion.models.check import copy_model
from apportion.models.engine_choice import choose_engine
from apportion.models.probe import probe_model
from apportion.models.proof import CannotTrace, TraceExample, require_same_control_flow, trace_engine
from apportion.models.record_tracer import Path
from apportion.models.synthetic import synthetic_batch


class VettedEngine:
    """The engine that was chosen, which runs the records of a micro-batch together only where they are known to stay apart.

    Args:
        model: the model that is trained.
        choice: the engine that was chosen for it.
        example, target: inputs and target of one record, for whose shapes it was chosen, in training, with the loss of the run.
        lent: whether the model is there for this engine alone.
    """

    def __init__(self, model: nn.Module, choice: EngineChoice, example: Any, target: Any = None, *, lent: bool = False):
        self.model, self._choice, self._lent = model, choice, lent
        self._build()
        if choice.path is not None:
            kind = _batch_kind(example, tuple(True for _ in model.modules()), first=0)
            self._verdicts[kind] = choice.path
            self._losses[kind, _shapes(target, first=0)] = True

    def _build(self) -> None:
        self._together: Engine = build_engine(self.model, self._choice, lent=self._lent)
        self._current: Engine = self._together
        self._alone: Engine | None = self._together if self._choice.mode == "loop" else None
        self._verdicts: dict[tuple[Any, ...], Path | None] = {}
        self._counts: dict[tuple[Any, ...], bool] = {}
        self._losses: dict[tuple[Any, ...], bool] = {}
        self._records: dict[tuple[Any, ...], Any] = {}  # shapes and types of a record of each kind, without values
        self._kind: tuple[Any, ...] = ()
        self._walk = ModelWalk(self.model)
        self._seen = ModuleState(self.model), self._buffer_versions()

    @property
    def mode(self) -> Mode:
        return self._together.mode

    def sync_weights(self) -> None:
        """Take over the model as it is. What changed beside its weights (a temperature, a mask) may change its path: proofs are renewed."""
        state, writes = self._seen
        if state.find_change() is not None or writes != self._buffer_versions():
            self._build()
        self._together.sync_weights()
        if self._is_another():
            self._build()
        if self._alone is not None:
            self._alone.sync_weights()

    def forward(self, inputs: Any, views: int = 1) -> Any:
        self._kind = _batch_kind(inputs, self._walk.training_flags(), first=1)
        self._current = self._together if self._stay_apart(inputs) else self._reference_engine()
        try:
            outputs = self._current.forward(inputs, views)
        except OtherOutput:  # what would follow was not traced
            pass
        else:
            if self._current is self._alone or not self._is_another():
                return outputs
        self._current = self._reference_engine()
        return self._current.forward(inputs, views)

    def record_losses(self, loss_fn: Callable[[Any, Any], Tensor], outputs: Any, targets: Any) -> Tensor:
        """As the engine; one after the other where the loss could not be traced for targets of this kind."""
        as_chosen = self._current is self._alone or not self._choice.losses_together or not batch_size(targets)
        if as_chosen or self._losses_stay_apart(loss_fn, targets):
            return self._current.record_losses(loss_fn, outputs, targets)
        return record_losses(loss_fn, outputs, targets, together=False)

    def _losses_stay_apart(self, loss_fn: Callable[[Any, Any], Tensor], targets: Any) -> bool:
        kind = self._kind, _shapes(targets, first=1)
        if kind not in self._losses:
            record, target = self._records[self._kind], map_tensors(_value_free, targets)
            try:
                trace_engine(self.model, self._choice, TraceExample(record, target, loss_fn, self._synthetic(record)))
                self._losses[kind] = True
            except Exception:
                self._losses[kind] = False
        return self._losses[kind]

    def _is_another(self) -> bool:
        """Whether the engine has made its copy of the model anew, which is then not the one that was traced."""
        return isinstance(self._together, OnePass) and self._together.rebuilt

    def _buffer_versions(self) -> list[tuple[int, int]]:
        """Which buffers there are, and how often each was written to."""
        return [(id(buffer), buffer._version) for buffer in self._walk.find().buffers]

    def require_own_parameters(self, loss: Tensor) -> None:
        self._current.require_own_parameters(loss)

    def gradients(self) -> Gradients | Rows:
        return self._current.gradients()

    def _stay_apart(self, inputs: Any) -> bool:
        if self._choice.mode == "loop":
            return False
        leaves = [inputs] if isinstance(inputs, Tensor) else tree_leaves(inputs)
        first = next((leaf for leaf in leaves if isinstance(leaf, Tensor)), None)
        if first is None or not first.shape[0]:
            return True  # nobody is in it
        if not all(isinstance(leaf, Tensor) and leaf.dim() for leaf in leaves):
            return False
        kind = self._kind
        if kind not in self._records:
            self._records[kind] = map_tensors(_value_free, inputs)
        record = self._records[kind]
        if kind not in self._verdicts:
            self._verdicts[kind] = self._prove(record)
        path = self._verdicts[kind]
        if path is not None and isinstance(self._together, OnePass):
            self._together.proved_outputs = path.alone_outputs
        if path is None or not path.looks_at_count:
            return path is not None
        with_count = (batch_size(inputs), *kind)
        if with_count not in self._counts:
            self._counts[with_count] = self._takes_path(record, batch_size(inputs), path)
        return self._counts[with_count]

    def _prove(self, record: Any) -> Path | None:
        try:
            probe_model(self.model, record)
            choose_engine(self.model, None, record, torch.zeros(()), self.mode)
            example = TraceExample(record, torch.zeros(()), None, self._synthetic(record))
            return trace_engine(self.model, self._choice, example)
        except Exception:  # refused, or whatever else goes wrong on this kind of records: alone they cannot meet
            return None

    def _takes_path(self, record: Any, count: int, path: Path) -> bool:
        example = TraceExample(record, records=self._synthetic(record) if self._choice.alone else None)
        try:
            require_same_control_flow(self.model, self._choice, example, count, path)
        except CannotTrace:
            return False
        return True

    def _synthetic(self, record: Any) -> Any:
        return synthetic_batch(copy_model(self.model), record)

    def _reference_engine(self) -> Engine:
        if self._alone is None:
            self._alone = build_engine(self.model, "loop")
            self._alone.sync_weights()
        return self._alone


def _value_free(leaf: Any) -> Any:
    """Zeros in the shape of a record, which take no room."""
    return leaf.new_zeros(()).expand(leaf.shape[1:]) if isinstance(leaf, Tensor) and leaf.dim() else leaf


def _shapes(tree: Any, first: int) -> tuple[Any, ...]:
    """Of a single record, whose dimensions begin with the one called `first`."""
    return tuple((tensor.shape[first:], tensor.dtype, tensor.layout) for tensor in tensor_leaves(tree))


def _batch_kind(inputs: Any, training: tuple[bool, ...], first: int) -> tuple[Any, ...]:
    """All public facts about a micro-batch on which the path of the model may depend, but for its size.

    Args:
        training: the flags of all modules.
        first: the first dimension that belongs to a single record.
    """
    return (
        *_shapes(inputs, first),
        training,
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.is_autocast_enabled("mps"),
    )
