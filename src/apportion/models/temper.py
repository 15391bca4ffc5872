"""Tempered sigmoids: bounded activations, which keep the gradients of single records short."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from apportion.errors import InvalidArgument
from apportion.models.check import copy_model
from apportion.strategies.tempering import Temper


class TemperedSigmoid(nn.Module):
    """φ(x) = s·sigmoid(T·x) − o. For (s, T, o) = (2, 2, 1) it is tanh, for (1, 1, 0) the logistic sigmoid.

    Args:
        scale, temperature, offset: s, T and o, as of `apportion.strategies.tempering.Temper`, which names the source.
    """

    def __init__(self, scale: float = 2.0, temperature: float = 2.0, offset: float = 1.0):
        super().__init__()
        shape = Temper(scale, temperature, offset)  # validates them
        self.scale, self.temperature, self.offset = shape.scale, shape.temperature, shape.offset

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * torch.sigmoid(self.temperature * x) - self.offset

    def extra_repr(self) -> str:
        return f"scale={self.scale:g}, temperature={self.temperature:g}, offset={self.offset:g}"


_REPLACED = (nn.ReLU, nn.Tanh, TemperedSigmoid)


def temper(model: nn.Module, scale: float = 2.0, temperature: float = 2.0, offset: float = 1.0) -> nn.Module:
    """A copy of `model` with a `TemperedSigmoid` in the place of every ReLU; the model passed in is not changed.

    A tanh is a tempered sigmoid already, and takes on the same shape. Only layers can be replaced: a function that is called
    inside `forward`, as torch.relu(x), cannot be seen here, and stays.

    Args:
        model: any module with such layers. Weights are kept; other activations are not touched.
        scale, temperature, offset: s, T and o of φ(x) = s·sigmoid(T·x) − o.
    """
    if not isinstance(model, nn.Module):
        raise InvalidArgument("model", model, f"it is a {type(model).__name__}", "Pass a torch.nn.Module")
    tempered = copy_model(model)
    places = [name for name, layer in tempered.named_modules(remove_duplicate=False) if type(layer) in _REPLACED]
    if not places:
        raise InvalidArgument(
            "model",
            type(model).__name__,
            "it has no ReLU or tanh layer to replace; functions such as torch.relu(x) inside forward() cannot be seen",
            "Use torch.nn.ReLU layers, or apportion.TemperedSigmoid in the model itself",
        )
    for name in places:
        layer = TemperedSigmoid(scale, temperature, offset).train(tempered.training)
        if not name:
            return layer
        tempered.set_submodule(name, layer)
    return tempered


def require_tempered(model: nn.Module, shape: Temper | None) -> None:
    """Refuse a model that a recipe would have changed, and nobody did: without tempered sigmoids it is another method."""
    if shape is None:
        return
    replaced = next((name for name, layer in model.named_modules() if type(layer) in (nn.ReLU, nn.Tanh)), None)
    if replaced is not None or not any(isinstance(layer, TemperedSigmoid) for layer in model.modules()):
        arguments = f"scale={shape.scale:g}, temperature={shape.temperature:g}, offset={shape.offset:g}"
        raise InvalidArgument(
            "model",
            type(model).__name__,
            "the recipe trains tempered sigmoids, and the model has none or still has other activations",
            f"Train apportion.temper(model, {arguments})",
        )
