"""An image and its mirror image as one: the mean of the features of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

from apportion.errors import InvalidArgument

if TYPE_CHECKING:
    from apportion.features.extractor import FeatureMap


@dataclass(frozen=True)
class Mirror:
    """½·(φ(x) + φ(x̄)), where x̄ is x with left and right exchanged.

    A linear layer then answers alike to both: what it could learn about left and right is gone, and with it the noise of that half of its
    directions. That is right where a mirror image has the same class, as of photographs, and wrong for digits and letters.

    Args:
        features: the map φ, of images.

    Source: invariance by averaging over a group, as in Tramèr and Boneh's random flips (2021); views of a record are averaged before
    clipping in De et al. (2022), and of a linear layer on features the average may be taken once.
    Guarantee: a fixed function of one record, so it is as public as φ, and costs nothing.

    Examples:
        >>> import apportion as ap
        >>> import torch
        >>> both = ap.features.Extractor(ap.features.Mirror(ap.features.Scatter()), (1, 8, 8))
        >>> image = torch.rand(1, 1, 8, 8)
        >>> bool((both(image) - both(image.flip(-1))).abs().max() < 1e-4)
        True
    """

    features: FeatureMap

    @property
    def public(self) -> str:
        """Where its numbers come from."""
        return f"{self.features.public}; the mean with the mirror image"

    def build(self, shape: tuple[int, ...]) -> nn.Module:
        """As of φ."""
        if len(shape) != 3:
            reason = "it needs images (channels, height, width), of which left and right are exchanged"
            raise InvalidArgument("features", f"Mirror on inputs of shape {shape}", reason, "Leave it out")
        return _Mirrored(self.features.build(shape))


class _Mirrored(nn.Module):
    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = (self.module(images) + self.module(images.flip(-1))) / 2
        return found
