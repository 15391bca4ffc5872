"""A second layer of features that nobody trained: random directions of the channels at each position, rectified, and local averages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from apportion.errors import InvalidArgument
from apportion.features.feature_norms import GroupNorm
from apportion.features.whitening import CENTRE, PIECE, Whitening, covariance_power, on_drawn_images, whiten
from apportion.validate import Checked, at_least, checked, in_open_unit, whole

if TYPE_CHECKING:
    from apportion.features.extractor import FeatureMap

GRID = 4
"""Positions on each axis that are left after averaging."""
_SEED = 0
_SHORTEST = 1e-3


@dataclass(frozen=True)
class RandomLayer(Checked):
    """whiten(mean over a neighbourhood of max(±R·v − t, 0)), where v = A·(φ(x − ½) − μ) at one position, brought to length √channels.

    φ is normalised by groups, and A and μ are those of `Whiten`. The rows of R are random unit vectors, fixed by a seed. Averages of such
    numbers over many directions are an arc-cosine kernel: two neighbourhoods are alike if what stands at their positions points the same
    way, whatever its contrast. One linear layer on top learns from combinations of channels, which it cannot on the channels themselves.
    It gained 3 points over `Whiten` on CIFAR-100 with 20 classes, and lost half a point on Fashion-MNIST: it is for photographs.

    Args:
        features: the map φ, of images with values in [0, 1].
        directions: rows of R; there are twice as many features at each of 4 × 4 positions.
        threshold: t; what no direction finds clearly is 0.
        power, groups: as of `Whiten`.

    Source: Rahimi and Recht, Random features for large-scale kernel machines (2007); Cho and Saul, Kernel methods for deep learning
    (2009); for image patches with pooling Coates, Lee and Ng, An analysis of single-layer networks (2011). That it stands on a scattering
    transform which drawn images whiten is ours.
    Guarantee: R is random and all other constants come from `dead_leaves`, so it is as public as φ, and costs nothing.

    Examples:
        >>> import apportion as ap
        >>> ap.features.Extractor(ap.features.RandomLayer(ap.features.Scatter(), directions=10), (3, 16, 16), norm=None).width
        320
    """

    prefix = "features"
    features: FeatureMap
    directions: int = checked(384, whole, "it is a number of random directions", "Try directions=384")
    threshold: float = checked(0.5, at_least(0), "it is subtracted before rectifying", "Try threshold=0.5")
    power: float = checked(
        0.25, in_open_unit, "0 changes nothing, and beyond ½ weak directions prevail", "Try power=0.25"
    )
    groups: int = checked(27, whole, "it is a number of groups", "Try groups=27")

    @property
    def public(self) -> str:
        """Where its numbers come from."""
        return f"{self.features.public}; {self.directions} random directions; whitened by drawn images"

    def build(self, shape: tuple[int, ...]) -> nn.Module:
        """(records, channels, height, width) → (records, 2·directions, positions)."""
        if len(shape) != 3:
            reason = "it needs images (channels, height, width)"
            raise InvalidArgument("features", f"RandomLayer on inputs of shape {shape}", reason, "Use Whiten instead")
        module = self.features.build(shape).requires_grad_(False).eval()
        norm = GroupNorm(self.groups)
        found = on_drawn_images(module, norm, shape)
        mean = found.mean((0, 2, 3))[:, None]
        matrix = covariance_power((found.flatten(2) - mean).transpose(0, 1).flatten(1), -self.power)
        layer = _Directions(matrix.float(), mean.float(), self.directions, self.threshold)
        with torch.no_grad():
            above = torch.cat([layer(piece.float()) for piece in found.split(PIECE)]).double()
        return _Layered(module, norm, layer, whiten(above, self.power))


class _Directions(nn.Module):
    """What random directions find, averaged: (records, channels, height, width) → (records, 2·directions, positions)."""

    def __init__(self, matrix: Tensor, mean: Tensor, directions: int, threshold: float):
        super().__init__()
        self._threshold = threshold
        rows = torch.randn(directions, len(matrix), generator=torch.Generator().manual_seed(_SEED))
        # made anew wherever it is built, as in `Whiten`
        for name, one in (("matrix", matrix), ("mean", mean), ("rows", functional.normalize(rows))):
            self.register_buffer(f"_{name}", one, persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        evened = self.get_buffer("_matrix") @ (values.flatten(2) - self.get_buffer("_mean"))
        lengths = evened.square().sum(1, keepdim=True).sqrt().clamp(min=_SHORTEST) / math.sqrt(values.shape[1])
        found = (self.get_buffer("_rows") @ (evened / lengths)).unflatten(2, tuple(values.shape[2:]))
        both = torch.cat([functional.relu(found - self._threshold), functional.relu(-found - self._threshold)], 1)
        height, width = values.shape[2:]
        return functional.adaptive_avg_pool2d(both, (min(GRID, height), min(GRID, width))).flatten(2)


class _Layered(nn.Module):
    def __init__(self, module: nn.Module, norm: GroupNorm, layer: nn.Module, whitening: Whitening):
        super().__init__()
        self.module, self._norm, self.layer = module, norm, layer
        for name in ("channels", "mean", "positions"):
            self.register_buffer(f"_{name}", getattr(whitening, name), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.layer(self._norm.apply(self.module(inputs - CENTRE)))
        return self.get_buffer("_channels") @ (found - self.get_buffer("_mean")) @ self.get_buffer("_positions")
