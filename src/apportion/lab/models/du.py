"""The network of Du et al.: that of Papernot et al. with ReLU, on pixels that are standardised as in the authors' program."""

from __future__ import annotations

from torch import Tensor, nn

from apportion.lab.data import DataSet
from apportion.lab.models.activations import Activation
from apportion.lab.models.lin import papernot

MEAN, DEVIATION = 0.1307, 0.3081
"""Of the pixels of MNIST, published with it. The program takes the same for all images."""


class Standardised(nn.Module):
    """(pixel − mean) / deviation, both fixed."""

    def forward(self, pixels: Tensor) -> Tensor:
        return (pixels - MEAN) / DEVIATION


def cnn(data: DataSet, activation: Activation) -> nn.Module:
    return nn.Sequential(Standardised(), papernot(data, activation))
