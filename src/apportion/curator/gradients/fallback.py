"""Modules without a rule: the module runs record by record, under `torch.func.vmap` or in a loop.

Every record gets its own copy θ_i of the module's trained parameters, as in the reference engine, and the backward pass leaves g_i in
θ_i. The rest of the model keeps the fast path. The loop is for modules through which records cannot be traced (`proof.py`): a record that
runs alone cannot mix with others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_leaves

from apportion.curator.gradients.batching_rules import vmap_records
from apportion.curator.gradients.layer_use import MaterialisedUse, gradient_or_zeros
from apportion.curator.gradients.module_state import ModuleState
from apportion.curator.tree import drop_objects, is_plain, map_tensors, tensor_leaves
from apportion.errors import UnsupportedModel

if TYPE_CHECKING:
    from apportion.curator.gradients.one_pass import OnePass


@contextmanager
def _original_forward(module: nn.Module) -> Iterator[None]:
    """In place of the replacement, for the duration of a call."""
    replacement = module.forward
    module.forward = type(module).forward.__get__(module)
    try:
        yield
    finally:
        module.forward = replacement


def run_under_vmap(module: nn.Module, path: str, names: Mapping[str, str], engine: OnePass) -> None:
    """Replace the forward pass of `module`, a part of the scratch copy. `names` are its trained parameters, children included."""

    def forward(*inputs: Any, **named: Any) -> Any:
        records = _count_records(module, path, (inputs, named))
        parameters = dict(module.named_parameters())
        copies = {
            own: parameters[own].expand(records, *parameters[own].shape).detach().requires_grad_() for own in names
        }
        leaves, structure = tree_flatten((inputs, named))
        carried = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

        def run_record(own_copies: Mapping[str, Tensor], record: list[Tensor]) -> Any:
            own = list(leaves)
            for index, tensor in zip(carried, record, strict=True):
                own[index] = tensor.unsqueeze(0)
            positional, keywords = structure.unflatten(own)
            with _original_forward(module):
                output = functional_call(module, dict(own_copies), positional, keywords)
            return map_tensors(lambda leaf: leaf.squeeze(0) if isinstance(leaf, Tensor) else leaf, output)

        outputs = vmap_records(run_record, copies, [leaves[index] for index in carried])
        use = MaterialisedUse(names, lambda _: {own: gradient_or_zeros(copies[own]) for own in names})
        engine.collect(use, copies.values())
        return outputs

    module.forward = forward


def run_in_loop(module: nn.Module, path: str, names: Mapping[str, str], engine: OnePass) -> None:
    """Replace the forward pass of `module` by a loop over the records, each with its own copy of the trained parameters."""

    def forward(*inputs: Any, **named: Any) -> Any:
        calls = engine.outputs_alone.setdefault(path, [])
        if engine.checker is not None:
            calls.append(None)
            return engine.checker.output_alone(path, len(calls) - 1, (inputs, named))
        records = _count_records(module, path, (inputs, named))
        parameters = dict(module.named_parameters())
        copies = [
            {own: parameters[own].detach().clone().unsqueeze(0).requires_grad_() for own in names}
            for _ in range(records)
        ]
        outputs, state = [], ModuleState(engine.scratch)  # of all modules: this one may hold on to others
        for i, own_copies in enumerate(copies):
            state.restore()  # what one record left behind does not reach the next
            positional, keywords = map_tensors(
                lambda leaf, i=i: leaf[i : i + 1].clone() if isinstance(leaf, Tensor) else leaf, (inputs, named)
            )
            with _original_forward(module):
                weights = {own: value[0] for own, value in own_copies.items()}
                outputs.append(drop_objects(functional_call(module, weights, positional, keywords)))
        state.restore()  # nor the rest of the model, which was traced without it
        _require_proved_outputs(path, outputs, engine.proved_outputs, len(calls))
        calls.append(map_tensors(_to_meta, outputs[0]))
        if names:
            engine.collect_alone(_looped_use(names, copies), [value for one in copies for value in one.values()])
        return map_tensors(lambda *parts: torch.cat(parts) if isinstance(parts[0], Tensor) else parts[0], *outputs)

    module.forward = forward


class OtherOutput(UnsupportedModel):
    """A module that runs one record after the other returned something else than when its records were traced."""

    def __init__(self, path: str):
        super().__init__(
            f"{path} returns other values, shapes or types for some records than for others, by which the rest of the model may "
            "decide what it does with all of them"
        )


OutputKind = tuple[Any, tuple[Any, ...]]
"""The structure of an output, and of every leaf what is the same for all records: shape and type of a tensor, or a value."""


def output_kind(output: Any) -> OutputKind:
    """All that Python code could decide by, apart from the values of tensors."""
    leaves, structure = tree_flatten(output)
    graded = torch.is_grad_enabled()
    return structure, tuple(
        (leaf.shape, leaf.dtype, leaf.requires_grad or not graded) if isinstance(leaf, Tensor) else (type(leaf), leaf)
        for leaf in leaves
    )


def _require_proved_outputs(
    path: str, outputs: list[Any], proved: Mapping[str, list[OutputKind]] | None, call: int
) -> None:
    """What follows was traced with outputs of one kind. Another kind, even of all records, may lead to what nobody has traced."""
    kinds = [output_kind(output) for output in outputs]
    expected = kinds if proved is None else proved.get(path, [])[call : call + 1]
    if any(kind not in expected[:1] for kind in kinds):
        raise OtherOutput(path)


def _looped_use(names: Mapping[str, str], copies: list[dict[str, Tensor]]) -> MaterialisedUse:
    """Of the gradients that autograd leaves in the copies of the single records."""
    return MaterialisedUse(
        names, lambda _: {own: torch.cat([gradient_or_zeros(one[own]) for one in copies]) for own in names}
    )


def _to_meta(leaf: Any) -> Any:
    return torch.empty_like(leaf, device="meta", requires_grad=leaf.requires_grad) if isinstance(leaf, Tensor) else leaf


def _count_records(module: nn.Module, path: str, arguments: Any) -> int:
    """How many records a module is called with: all its tensors must have one row for each."""
    if not all(map(is_plain, tree_leaves(arguments))):
        raise UnsupportedModel(
            f"{path} ({type(module).__name__}) is to run record by record and is called with an object, such as a cache, in which one "
            "record would find what another has left"
        )
    tensors = tensor_leaves(arguments)
    records = tensors[0].shape[0] if tensors and tensors[0].dim() else 0
    if not records or any(tensor.dim() == 0 or tensor.shape[0] != records for tensor in tensors):
        raise UnsupportedModel(
            f"{path} ({type(module).__name__}) is to run record by record and is called with something that has no batch dimension in "
            "front"
        )
    return records
