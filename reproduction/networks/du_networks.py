"""The network of Du et al.: that of Papernot et al. with ReLU, on pixels that are standardised as in the authors' program."""

from __future__ import annotations

from torch import Tensor, nn

from apportion.compare.networks.activations import Activation
from apportion.data import DataSet
from reproduction.networks.lin_networks import papernot

MEAN, DEVIATION = 0.1307, 0.3081
"""Of the pixels of MNIST, as in the program. Here for all images: how it treats others is not known to us."""


class Standardised(nn.Module):
    """(pixel − mean) / deviation, both fixed."""

    def forward(self, pixels: Tensor) -> Tensor:
        return (pixels - MEAN) / DEVIATION


def cnn(data: DataSet, activation: Activation) -> nn.Module:
    """26,010 parameters on MNIST.

    Source: the program that belongs to Du et al., Dynamic Differential-Privacy Preserving SGD.
    """
    return nn.Sequential(Standardised(), papernot(data, activation))
