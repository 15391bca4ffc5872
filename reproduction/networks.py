"""The networks of the papers. Importing this module adds them, by name, to those that `apportion` can build.

Activations of Lin et al. are not printed. Our reading: ReLU in the column `abadi`, tanh in all others. Parameters are counted for the data
that a network was published for, with ten classes unless said otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from apportion.compare.networks import MODELS, Activation, Model, embedding, lstm
from apportion.data import DataSet

MEAN, DEVIATION = 0.1307, 0.3081
"""Of the pixels of MNIST, as in the program of Du et al. Used for all images: how that program treats others is not known to us."""


def with_head(layers: Sequence[nn.Module], data: DataSet, activation: Activation, hidden: Sequence[int]) -> nn.Module:
    """`layers`, then the `hidden` layers and one unit for each class. The width of what `layers` return is found by running them."""
    features = nn.Sequential(*layers, nn.Flatten())
    with torch.no_grad():
        width = int(features(torch.zeros(1, *data.shape)).shape[1])
    head: list[nn.Module] = []
    for units in hidden:
        head += [nn.Linear(width, units), activation()]
        width = units
    return nn.Sequential(*features, *head, nn.Linear(width, data.classes))


def papernot(data: DataSet, activation: Activation) -> nn.Module:
    """26,010 parameters on MNIST.

    Source: Papernot et al., Tempered Sigmoid Activations for Deep Learning with Differential Privacy, AAAI 2021.
    """
    layers = (
        *(nn.Conv2d(data.shape[0], 16, 8, stride=2, padding=3), activation(), nn.MaxPool2d(2, stride=1)),
        *(nn.Conv2d(16, 32, 4, stride=2), activation(), nn.MaxPool2d(2, stride=1)),
    )
    return with_head(layers, data, activation, hidden=[32])


def lin_b1(data: DataSet, activation: Activation) -> nn.Module:
    """152,618 parameters on MNIST: as printed, except for the last layer, whose 32 units cannot tell ten digits apart.

    Source, also of B2 to B4: Lin et al., Understanding Adaptive Gradient Clipping in DP-SGD, Empirically, appendix B. B1 claims to be the
    network of Papernot et al.
    """
    layers = (
        *(nn.Conv2d(data.shape[0], 16, 3, stride=2, padding=1), activation(), nn.MaxPool2d(2, stride=1)),
        *(nn.Conv2d(16, 32, 3, padding=1), activation(), nn.MaxPool2d(2, stride=1)),
    )
    return with_head(layers, data, activation, hidden=[32])


def lin_b2(data: DataSet, activation: Activation) -> nn.Module:
    """550,570 parameters on CIFAR-10."""
    layers: list[nn.Module] = []
    for before, after in ((data.shape[0], 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), activation()]
        layers += [nn.Conv2d(after, after, 3, padding=1), activation(), nn.MaxPool2d(2)]
    return with_head(layers, data, activation, hidden=[128])


def lin_b3(data: DataSet, activation: Activation) -> nn.Module:
    """281,034 parameters on MNIST. Called smaller than B1, yet larger: "512 units" is read as a layer, as the text has two of them."""
    layers = (
        *(nn.Conv2d(data.shape[0], 16, 5), activation(), nn.AvgPool2d(2)),
        *(nn.Conv2d(16, 32, 5), activation(), nn.AvgPool2d(2)),
    )
    return with_head(layers, data, activation, hidden=[512])


def lin_b4(data: DataSet, activation: Activation) -> nn.Module:
    """176,938 parameters on CIFAR-10."""
    layers = (
        *(nn.Conv2d(data.shape[0], 32, 5, padding=2), activation(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 32, 5), activation(), nn.MaxPool2d(2)),
    )
    return with_head(layers, data, activation, hidden=[128])


def alexnet(data: DataSet, activation: Activation) -> nn.Module:
    """57,044,810 parameters, for images of at least 63 × 63. Without dropout, whose use is not published.

    Source: Krizhevsky, One weird trick for parallelizing convolutional neural networks, 2014: the one-column form of the network.
    """
    layers = (
        *(nn.Conv2d(data.shape[0], 64, 11, stride=4, padding=2), activation(), nn.MaxPool2d(3, stride=2)),
        *(nn.Conv2d(64, 192, 5, padding=2), activation(), nn.MaxPool2d(3, stride=2)),
        *(nn.Conv2d(192, 384, 3, padding=1), activation()),
        *(nn.Conv2d(384, 256, 3, padding=1), activation()),
        *(nn.Conv2d(256, 256, 3, padding=1), activation(), nn.MaxPool2d(3, stride=2)),
        nn.AdaptiveAvgPool2d(6),
    )
    return with_head(layers, data, activation, hidden=[4096, 4096])


class Residual(nn.Module):
    """φ(x + W₂·φ(W₁·x)); where the size changes, the short cut is a 1 × 1 convolution."""

    def __init__(self, before: int, after: int, stride: int, activation: Activation):
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        same = before == after and stride == 1
        self.short_cut = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)
        self.between, self.last = activation(), activation()

    def forward(self, pixels: Tensor) -> Tensor:
        through = self.second(self.between(self.first(pixels)))
        result: Tensor = self.last(self.short_cut(pixels) + through)
        return result


def resnet18(data: DataSet, activation: Activation) -> nn.Module:
    """11,172,042 parameters: convolutions have no bias. Without batch normalisation, which mixes records; Lin et al. left it out too.

    Source: He et al., Deep Residual Learning for Image Recognition, CVPR 2016.
    """
    blocks = [
        Residual(before, after, stride, activation)
        for first, after, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
        for before, stride in ((first, stride), (after, 1))
    ]
    stem = (nn.Conv2d(data.shape[0], 64, 7, 2, padding=3, bias=False), activation(), nn.MaxPool2d(3, 2, padding=1))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, data.classes))


class Standardised(nn.Module):
    """(pixel − mean) / deviation, both fixed."""

    def forward(self, pixels: Tensor) -> Tensor:
        return (pixels - MEAN) / DEVIATION


def du_cnn(data: DataSet, activation: Activation) -> nn.Module:
    """26,010 parameters on MNIST: the network of Papernot et al. on standardised pixels.

    Source: the program that belongs to Du et al., Dynamic Differential-Privacy Preserving SGD.
    """
    return nn.Sequential(Standardised(), papernot(data, activation))


def adadp_mlp(data: DataSet, activation: Activation) -> nn.Module:
    """Two hidden layers of 512 units without bias: 668,672 parameters on MNIST.

    Source: the authors' code of Koskela and Honkela, Learning Rate Adaptation for Differentially Private Learning.
    """
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(math.prod(data.shape), 512, bias=False), activation()),
        *(nn.Linear(512, 512, bias=False), activation(), nn.Linear(512, data.classes, bias=False)),
    )


PAPER_MODELS: dict[str, Model] = {
    "papernot-cnn": Model(papernot, "images"),
    "lin-b1": Model(lin_b1, "images"),
    "lin-b2": Model(lin_b2, "images"),
    "lin-b3": Model(lin_b3, "images"),
    "lin-b4": Model(lin_b4, "images"),
    "alexnet": Model(alexnet, "images"),
    "resnet18": Model(resnet18, "images"),
    "du-cnn": Model(du_cnn, "images", "relu"),
    # The text models of Du et al. are not published; these have the usual sizes: 160,306 parameters on IMDB, 107,602 on names (18 classes).
    "imdb-mlp": Model(embedding, "text", "relu"),
    "name-lstm": Model(partial(lstm, width=64, hidden=128), "text", None),
    "adadp-mlp": Model(adadp_mlp, "numbers", "relu"),
}
MODELS.update(PAPER_MODELS)
