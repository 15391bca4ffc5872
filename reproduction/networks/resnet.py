"""ResNet-18 without normalisation: batch normalisation mixes records, and Lin et al. left it out."""

from __future__ import annotations

from torch import Tensor, nn

from apportion.compare.networks.activations import Activation
from apportion.data import DataSet


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
    """11,172,042 parameters with ten classes: convolutions have no bias.

    Source: He et al., Deep Residual Learning for Image Recognition, CVPR 2016, without batch normalisation.
    """
    blocks = [
        Residual(before, after, stride, activation)
        for first, after, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
        for before, stride in ((first, stride), (after, 1))
    ]
    stem = (nn.Conv2d(data.shape[0], 64, 7, 2, padding=3, bias=False), activation(), nn.MaxPool2d(3, 2, padding=1))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, data.classes))
