"""Models of linear layers on the flattened input."""

from __future__ import annotations

import math

from torch import nn

from apportion.compare.networks.activations import Activation
from apportion.data import DataSet


def linear(data: DataSet) -> nn.Module:
    """Softmax regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(data.shape), data.classes))


def mlp(data: DataSet, activation: Activation, hidden: int = 64) -> nn.Module:
    """One hidden layer."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(data.shape), hidden), activation(), nn.Linear(hidden, data.classes)
    )


def adadp_mlp(data: DataSet, activation: Activation) -> nn.Module:
    """Two hidden layers of 512 units without bias: 668,672 parameters on MNIST.

    Source: the authors' code of Koskela and Honkela, Learning Rate Adaptation for Differentially Private Learning.
    """
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(math.prod(data.shape), 512, bias=False), activation()),
        *(nn.Linear(512, 512, bias=False), activation(), nn.Linear(512, data.classes, bias=False)),
    )
