"""Modules without a rule of their own: the module alone runs record by record under `torch.func.vmap`.

Every record gets its own copy θ_i of the module's trained parameters, as in the reference engine, and the backward pass leaves g_i in
θ_i. The rest of the model keeps the fast path.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from apportion.curator.gradients.materialised import WrittenOut
from apportion.curator.tree import map_tensors, tensors_of
from apportion.errors import UnsupportedModel

if TYPE_CHECKING:
    from apportion.curator.gradients.one_pass import OnePass


def run_record_by_record(module: nn.Module, path: str, names: Mapping[str, str], engine: OnePass) -> None:
    """Replace the forward pass of `module`, a part of the scratch copy. `names` are its trained parameters, children included."""
    original = type(module).forward

    def forward(*inputs: Any, **named: Any) -> Any:
        tensors = tensors_of((inputs, named))
        records = tensors[0].shape[0] if tensors and tensors[0].dim() else 0
        if not records or any(tensor.dim() == 0 or tensor.shape[0] != records for tensor in tensors):
            raise UnsupportedModel(
                f"{path} ({type(module).__name__}) has no rule for per-record gradients and is called with something that has no "
                "batch dimension in front, so it cannot be run record by record"
            )
        parameters = dict(module.named_parameters())
        copies = {
            own: parameters[own].expand(records, *parameters[own].shape).detach().requires_grad_() for own in names
        }

        def alone(own_copies: Mapping[str, Tensor], record: Any) -> Any:
            positional, keywords = map_tensors(lambda tensor: tensor.unsqueeze(0), record)
            module.forward = bound
            try:
                output = functional_call(module, dict(own_copies), positional, keywords)
            finally:
                module.forward = forward
            return map_tensors(lambda tensor: tensor.squeeze(0), output)

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            outputs = vmap(alone, randomness="different")(copies, (inputs, named))
        engine.collect(WrittenOut(names, lambda _: {own: _gradient_of(copies[own]) for own in names}), copies.values())
        return outputs

    bound = original.__get__(module)
    module.forward = forward


def _gradient_of(value: Tensor) -> Tensor:
    return torch.zeros_like(value) if value.grad is None else value.grad
