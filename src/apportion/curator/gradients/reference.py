"""The reference engine: exact per-record gradients of any module by `torch.func`.

Every record gets its own copy θ_i of the trained parameters and is evaluated alone, as a batch of one. The outputs are stacked, so
any loss can follow, and one backward pass leaves in θ_i.grad the gradient of record i: ∂L/∂θ_i. Because a record is evaluated
alone, the forward pass cannot mix records, unless a module keeps something of them in a place that is not put back (`module_state.py`).

The forward pass runs in a **scratch copy** of the model, with copies of all weights and buffers: whatever a module remembers of the
records it saw (a running maximum, a cached input, rows rescaled in place) stays behind the trust boundary and never reaches the
model that is released.

`vmap` runs all records at once. Modules without a batching rule (LSTM, GRU, RNN) run one record after the other, in the mode
`loop`: slower, equally exact. Memory is b × parameters for b records, which micro-batches bound.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from apportion.curator.gradients.batching_rules import vmap_records
from apportion.curator.gradients.layer_use import add_views, gradient_or_zeros
from apportion.curator.gradients.losses import LossFunction, record_losses, require_own_leaves
from apportion.curator.gradients.model_walk import ModelWalk, trained_parameters
from apportion.curator.gradients.module_state import ModelStructure, ModuleState
from apportion.curator.tree import batch_size, call_arguments, drop_objects, map_tensors
from apportion.errors import WrongOrder


class ReferenceGradients:
    """`forward` a micro-batch, run a backward pass of its loss, then fetch the `gradients`."""

    def __init__(self, model: nn.Module, mode: Literal["vmap", "loop"]):
        self.model, self.mode = model, mode
        self.scratch = copy.deepcopy(model)
        self.module_state = ModuleState(self.scratch)
        self._walk = ModelWalk(model)
        self._structure = ModelStructure(self._walk)
        self._frozen: dict[str, Tensor] = {}
        self._copies: list[dict[str, Tensor]] | None = None
        self._views = 1

    def forward(self, inputs: Any, views: int = 1) -> Any:
        """The model's outputs for a batch, each row through its own copy of the parameters. So many rows are views of one record."""
        self.sync_weights()
        self._views = views
        return self.run(inputs)

    def run(self, inputs: Any) -> Any:
        """The outputs of the scratch copy as it is."""
        size = batch_size(inputs)
        trained = {name: parameter.detach().clone() for name, parameter in trained_parameters(self._walk).items()}
        parameters = self._walk.find().parameters
        self._frozen = {name: p.detach().clone() for name, p in parameters.items() if name not in trained}
        if self.mode == "vmap":
            together = {name: value.expand(size, *value.shape).requires_grad_() for name, value in trained.items()}
            self._copies = [together]
            return vmap_records(self._alone, together, inputs)
        self._copies = [
            {name: value.clone().unsqueeze(0).requires_grad_() for name, value in trained.items()} for _ in range(size)
        ]
        outputs = [
            self._alone(
                {name: value[0] for name, value in copies.items()},
                map_tensors(lambda tensor, i=i: tensor[i].clone(), inputs),
            )
            for i, copies in enumerate(self._copies)
        ]
        return map_tensors(lambda *rows: torch.stack(rows) if isinstance(rows[0], Tensor) else rows[0], *outputs)

    def gradients(self) -> dict[str, Tensor]:
        """The gradients of the micro-batch, (b, *shape); zeros for a parameter that no record used. Can be fetched once."""
        if self._copies is None:
            raise WrongOrder("no forward pass is open: call the private model on the batch before the step")
        copies, self._copies = self._copies, None
        # each copy is let go of when its gradient was fetched: all are as large as the model
        rows = {name: torch.cat([gradient_or_zeros(values.pop(name)) for values in copies]) for name in list(copies[0])}
        return {name: add_views(one, self._views) for name, one in rows.items()}

    def record_losses(self, loss_fn: LossFunction, outputs: Any, targets: Any) -> Tensor:
        """The loss of every row alone, (b·views,)."""
        return record_losses(loss_fn, outputs, targets, together=self.mode == "vmap")

    def require_own_parameters(self, loss: Tensor) -> None:
        """Refuse a loss that would also leave a raw gradient in something else than the records' copies."""
        require_own_leaves(loss, [value for values in self._copies or () for value in values.values()])

    def _alone(self, parameters: Mapping[str, Tensor], record: Any) -> Any:
        positional, named = call_arguments(map_tensors(lambda tensor: tensor.unsqueeze(0), record))
        self._restore_state()
        buffers = {name: buffer.detach().clone() for name, buffer in self.model.named_buffers()}
        output = functional_call(self.scratch, {**self._frozen, **buffers, **parameters}, positional, named)
        return map_tensors(lambda leaf: leaf.squeeze(0) if isinstance(leaf, Tensor) else leaf, drop_objects(output))

    def sync_weights(self) -> None:
        """Take over the model's training flags and weights. Records get copies of these for the forward pass; what runs again in the
        backward pass, as with `torch.utils.checkpoint`, finds those of the scratch copy."""
        self._structure.require_same()
        self._restore_state()
        with torch.no_grad():
            for own, original in zip(self.scratch.parameters(), self.model.parameters(), strict=True):
                own.copy_(original)

    def _restore_state(self) -> None:
        """As it does for buffers: what a module keeps of a record does not reach the next one."""
        try:
            self.module_state.restore()
        except Exception:  # what a module made of its copy cannot be undone
            self.scratch = copy.deepcopy(self.model)
            self.module_state = ModuleState(self.scratch)
        for original, scratch in zip(self._walk.find().modules.values(), self.scratch.modules(), strict=True):
            scratch.training = original.training
