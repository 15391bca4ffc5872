"""A small convolutional network for images of any size, and the head that all convolutional networks end with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from apportion.compare.networks.activations import Activation
from apportion.data import DataSet


def cnn(data: DataSet, activation: Activation) -> nn.Module:
    """Two convolutions with average pooling, for images of any size from 8 × 8."""
    return nn.Sequential(
        nn.Conv2d(data.shape[0], 16, 3, padding=1),
        activation(),
        nn.AvgPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        activation(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        activation(),
        nn.Linear(32, data.classes),
    )


def with_head(layers: Sequence[nn.Module], data: DataSet, activation: Activation, hidden: int) -> nn.Module:
    """`layers`, then one hidden layer and one unit for each class. How many numbers the layers give is found by running them."""
    features = nn.Sequential(*layers, nn.Flatten())
    width = features_of(features, data)
    return nn.Sequential(*features, nn.Linear(width, hidden), activation(), nn.Linear(hidden, data.classes))


def features_of(features: nn.Module, data: DataSet) -> int:
    """How many numbers `features` makes of one image of the shape of `data`."""
    with torch.no_grad():
        return int(features(torch.zeros(1, *data.shape)).shape[1])
