"""The activations that a model can be built with."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

Activation = Callable[[], nn.Module]

ACTIVATIONS: dict[str, Activation] = {"relu": nn.ReLU, "tanh": nn.Tanh}
"""tanh is bounded, which keeps the gradients of single records small; plain DP-SGD was published with ReLU."""
