"""What modules remember of the records they saw is forgotten before they see others.

A module may keep numbers, tensors or anything else in attributes, in buffers that it makes or replaces, in hooks or children that it adds:
a running mean, the last hidden state, a table that grows. With those the records of one micro-batch would reach the gradients of another,
past clipping, or end a run that would not have ended without them. What is changed *inside* a list, a dict or another object is not
undone, nor are attributes of scripted modules.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_MISSING = object()


class ModuleState:
    """All modules of a model as they are now: attributes, children, buffers, hooks. Without `training`, and without parameters' values."""

    def __init__(self, model: nn.Module):
        self._modules = [(module, _attributes(module)) for module in model.modules()]
        self._registers = [
            (register, dict(register))
            for _, attributes in self._modules
            for name, register in attributes.items()
            if name in _OF_EVERY_MODULE and isinstance(register, dict)
        ]
        plain = [
            value
            for _, attributes in self._modules
            for name, value in attributes.items()
            if name not in _OF_EVERY_MODULE and isinstance(value, Tensor)
        ]
        # an attribute may be another view of a weight, which moves
        weights = {_place(parameter) for parameter in model.parameters()}
        tensors = [tensor for tensor in (*plain, *model.buffers()) if _place(tensor) not in weights]
        self._tensors = [(tensor, tensor.detach(), tensor.detach().clone()) for tensor in tensors]

    def restore(self) -> None:
        """Put them back. May raise if a tensor was changed beyond that; a new copy of the model is needed then."""
        for module, before in self._modules:
            now = vars(module)
            for name in now.keys() - before.keys() - {"training"}:
                del now[name]
            now.update(before)
        for register, content in self._registers:
            if len(register) != len(content) or any(
                register.get(name, _MISSING) is not value for name, value in content.items()
            ):
                register.clear()
                register.update(content)
        with torch.no_grad():
            for tensor, room, values in self._tensors:
                if tensor.data_ptr() != room.data_ptr() or tensor.shape != room.shape:
                    tensor.data = room
                room.copy_(values)


class Forgetful:
    """A loss that is a module: whatever it keeps of a record is gone when it is called again."""

    def __init__(self, loss: nn.Module):
        self.loss, self._state = loss, ModuleState(loss)

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        self._state.restore()
        value: Tensor = self.loss(outputs, targets)
        return value


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name != "training"}


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
