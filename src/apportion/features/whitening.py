"""Channels of features brought nearer to one length, by what they do on drawn images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from apportion.errors import InvalidArgument
from apportion.features.dead_leaves import dead_leaves
from apportion.features.feature_norms import GroupNorm
from apportion.validate import Checked, checked, in_open_unit, whole

if TYPE_CHECKING:
    from apportion.features.extractor import FeatureMap

IMAGES = 500
"""That the covariance is estimated from; each has as many positions as the map gives."""
_PIECE, _LINES = 50, 16
_LEAST = 0.01
"""Added to the variances, in units of their mean: directions that drawn images hardly have are not blown up."""


@dataclass(frozen=True)
class Whiten(Checked):
    """(Σ/σ̄² + 0.01)^(−power)·(φ(x) − μ), where φ are normalised features and μ, Σ mean and covariance of their channels on drawn images.

    A few directions of the channels carry most of the length of a record's gradient, so that clipping lets them through and noise
    drowns the others. Half of the way to equal lengths (power ¼; ½ would be the whole way) is where private training gained most:
    2 points on CIFAR-10 at ε = 1 and 3.

    Args:
        features: the map φ, of images or signals.
        power: how far the lengths of directions are evened out.
        groups: as of `GroupNorm`, which φ goes through first.

    Source: ours; covariances from images that nobody took as in DP-KFC, preconditioning half of the way as in Shampoo.
    Guarantee: μ and Σ come from `dead_leaves`, so it is as public as φ, and costs nothing.

    Examples:
        >>> import apportion as ap
        >>> ap.features.Extractor(ap.features.Whiten(ap.features.Scatter()), (1, 16, 16), norm=None).width
        1296
    """

    prefix = "features"
    features: FeatureMap
    power: float = checked(
        0.25, in_open_unit, "0 changes nothing, and beyond ½ weak directions prevail", "Try power=0.25"
    )
    groups: int = checked(27, whole, "it is a number of groups", "Try groups=27")

    @property
    def public(self) -> str:
        """Where its numbers come from."""
        return f"{self.features.public}; whitened by drawn images"

    def build(self, shape: tuple[int, ...]) -> nn.Module:
        """(records, channels, …) → (records, features, …)."""
        module = self.features.build(shape).requires_grad_(False).eval()
        norm = GroupNorm(self.groups)
        with torch.no_grad():
            drawn = _draw(shape)
            found = torch.cat([norm.apply(module(piece)) for piece in drawn.split(_PIECE)]).double()
        if found.dim() < 3:
            reason = f"its features have the shape {tuple(found.shape[1:])}, and channels are whitened over positions"
            raise InvalidArgument("features", "Whiten", reason, "Whiten a map that keeps positions, such as Scatter()")
        return _Whitened(module, norm, *_whitening(found.transpose(0, 1).flatten(1), self.power))


def _draw(shape: tuple[int, ...]) -> Tensor:
    """Drawn images; for signals one line of each."""
    if len(shape) == 3:
        return dead_leaves(IMAGES, (shape[0], shape[1], shape[2]))
    if len(shape) == 2:
        return dead_leaves(IMAGES, (shape[0], _LINES, shape[1]))[:, :, _LINES // 2]
    reason = "images (channels, height, width) and signals (channels, length) are drawn to whiten it by"
    raise InvalidArgument("features", f"Whiten on inputs of shape {shape}", reason, "Leave it out")


def _whitening(channels: Tensor, power: float) -> tuple[Tensor, Tensor]:
    """The matrix and the mean, of (channels, samples)."""
    mean = channels.mean(1, keepdim=True)
    centred = channels - mean
    variances, directions = torch.linalg.eigh(centred @ centred.mT / centred.shape[1])
    lengths = (variances / variances.mean() + _LEAST).clamp(min=_LEAST) ** -power
    return ((directions * lengths) @ directions.mT).float(), mean.float()


class _Whitened(nn.Module):
    def __init__(self, module: nn.Module, norm: GroupNorm, matrix: Tensor, mean: Tensor):
        super().__init__()
        self.module, self._norm = module, norm
        # computed anew wherever it is built, and not the same to the last digit on every machine, so it is no state to compare
        self.register_buffer("_matrix", matrix, persistent=False)
        self.register_buffer("_mean", mean, persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        features = self._norm.apply(self.module(inputs))
        return (self.get_buffer("_matrix") @ (features.flatten(2) - self.get_buffer("_mean"))).unflatten(
            2, features.shape[2:]
        )
