"""Colours turned so that brightness stands by itself before a feature map looks at each channel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from apportion.errors import InvalidArgument

if TYPE_CHECKING:
    from apportion.features.extractor import FeatureMap

_AXES = ((1.0, 1.0, 1.0), (1.0, 0.0, -1.0), (1.0, -2.0, 1.0))
"""Brightness, red against blue, and green against both; each is brought to length 1."""


@dataclass(frozen=True)
class Opponent:
    """φ(Q·x) with (r + g + b)/√3, (r − b)/√2 and (r − 2g + b)/√6 in place of red, green and blue.

    The three colours of a photograph are nearly the same image, so a map that treats each by itself finds the same edges three times.
    Turned, brightness has one channel, and the two differences tell of colour alone.

    Args:
        features: the map φ, of images with three channels.

    Source: opponent colours as in Geusebroek et al., Color invariance (2001); the axes are those of the principal components of natural
    colours, Ohta et al., Color information for region segmentation (1980).
    Guarantee: a fixed rotation of each pixel, so it is as public as φ, and costs nothing.

    Examples:
        >>> import apportion as ap
        >>> ap.features.Extractor(ap.features.Opponent(ap.features.Scatter()), (3, 16, 16)).width
        3888
    """

    features: FeatureMap

    @property
    def public(self) -> str:
        """Where its numbers come from."""
        return f"{self.features.public}; of opponent colours"

    def build(self, shape: tuple[int, ...]) -> nn.Module:
        """As of φ."""
        if len(shape) != 3 or shape[0] != len(_AXES):
            reason = "it needs images (3, height, width), in red, green and blue"
            raise InvalidArgument("features", f"Opponent on inputs of shape {shape}", reason, "Leave it out")
        return _Turned(self.features.build(shape))


class _Turned(nn.Module):
    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module
        axes = [[one / math.hypot(*axis) for one in axis] for axis in _AXES]
        self.register_buffer("_axes", torch.tensor(axes))

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.module((self.get_buffer("_axes") @ images.flatten(2)).view_as(images))
        return found
