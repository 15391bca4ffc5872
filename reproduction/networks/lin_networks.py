"""The networks of Lin et al., Understanding Adaptive Gradient Clipping in DP-SGD, Empirically (appendix B), and the one by Papernot
et al. that their B1 claims to be.

Activations are not printed there. Our reading: ReLU in the column `abadi`, tanh in all others. Parameters are counted for the data that
the networks were published for, with ten classes.
"""

from __future__ import annotations

from torch import nn

from apportion.compare.networks.activations import Activation
from apportion.compare.networks.cnn import with_head
from apportion.data import DataSet


def papernot(data: DataSet, activation: Activation) -> nn.Module:
    """26,010 parameters on MNIST.

    Source: Papernot et al., Tempered Sigmoid Activations for Deep Learning with Differential Privacy, AAAI 2021.
    """
    layers = (
        *(nn.Conv2d(data.shape[0], 16, 8, stride=2, padding=3), activation(), nn.MaxPool2d(2, stride=1)),
        *(nn.Conv2d(16, 32, 4, stride=2), activation(), nn.MaxPool2d(2, stride=1)),
    )
    return with_head(layers, data, activation, hidden=32)


def b1(data: DataSet, activation: Activation) -> nn.Module:
    """152,618 parameters on MNIST: as printed, but for the last layer, whose 32 units cannot tell ten digits apart."""
    layers = (
        *(nn.Conv2d(data.shape[0], 16, 3, stride=2, padding=1), activation(), nn.MaxPool2d(2, stride=1)),
        *(nn.Conv2d(16, 32, 3, padding=1), activation(), nn.MaxPool2d(2, stride=1)),
    )
    return with_head(layers, data, activation, hidden=32)


def b2(data: DataSet, activation: Activation) -> nn.Module:
    """550,570 parameters on CIFAR-10."""
    layers: list[nn.Module] = []
    for before, after in ((data.shape[0], 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), activation()]
        layers += [nn.Conv2d(after, after, 3, padding=1), activation(), nn.MaxPool2d(2)]
    return with_head(layers, data, activation, hidden=128)


def b3(data: DataSet, activation: Activation) -> nn.Module:
    """281,034 parameters on MNIST. Called smaller, and larger than B1: "512 units" is read as a layer, as the text has two of them."""
    layers = (
        *(nn.Conv2d(data.shape[0], 16, 5), activation(), nn.AvgPool2d(2)),
        *(nn.Conv2d(16, 32, 5), activation(), nn.AvgPool2d(2)),
    )
    return with_head(layers, data, activation, hidden=512)


def b4(data: DataSet, activation: Activation) -> nn.Module:
    """176,938 parameters on CIFAR-10."""
    layers = (
        *(nn.Conv2d(data.shape[0], 32, 5, padding=2), activation(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 32, 5), activation(), nn.MaxPool2d(2)),
    )
    return with_head(layers, data, activation, hidden=128)
