"""What a module remembers of the records it saw is forgotten before it sees others.

Weights and buffers of a scratch copy are taken over from the model again and again. But a module may also keep numbers, tensors or anything
else in attributes of its own: a running mean, the last hidden state. With those the records of one micro-batch would reach the gradients
of another, past clipping. What is changed *inside* a list, a dict or another object is not undone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


class PlainAttributes:
    """The attributes of all modules as they are now, except those that every module has."""

    def __init__(self, model: nn.Module):
        self._modules = [(module, _plain(module)) for module in model.modules()]
        tensors = [value for _, plain in self._modules for value in plain.values() if isinstance(value, Tensor)]
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in tensors]
        self._writes = [tensor._version for tensor, _ in self._tensors]

    def restore(self) -> None:
        """Put them back."""
        for module, before in self._modules:
            now = vars(module)
            for name in _plain(module).keys() - before.keys():
                del now[name]
            now.update(before)
        for at, (tensor, values) in enumerate(self._tensors):
            if tensor._version != self._writes[at]:
                with torch.no_grad():
                    tensor.copy_(values)
                self._writes[at] = tensor._version


def _plain(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name not in _OF_EVERY_MODULE}
