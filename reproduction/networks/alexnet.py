"""AlexNet, for photographs."""

from __future__ import annotations

from torch import nn

from apportion.compare.networks.activations import Activation
from apportion.compare.networks.cnn import features_of
from apportion.data import DataSet


def alexnet(data: DataSet, activation: Activation) -> nn.Module:
    """57,044,810 parameters with ten classes, for images of at least 63 × 63. Without dropout, whose use is not published.

    Source: Krizhevsky, One weird trick for parallelizing convolutional neural networks, 2014: the one-column form of the network.
    """
    features = nn.Sequential(
        *(nn.Conv2d(data.shape[0], 64, 11, stride=4, padding=2), activation(), nn.MaxPool2d(3, stride=2)),
        *(nn.Conv2d(64, 192, 5, padding=2), activation(), nn.MaxPool2d(3, stride=2)),
        *(nn.Conv2d(192, 384, 3, padding=1), activation()),
        *(nn.Conv2d(384, 256, 3, padding=1), activation()),
        *(nn.Conv2d(256, 256, 3, padding=1), activation(), nn.MaxPool2d(3, stride=2)),
        *(nn.AdaptiveAvgPool2d(6), nn.Flatten()),
    )
    width = features_of(features, data)
    return nn.Sequential(
        *features,
        *(nn.Linear(width, 4096), activation(), nn.Linear(4096, 4096), activation()),
        nn.Linear(4096, data.classes),
    )
