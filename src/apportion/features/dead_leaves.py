"""Drawn images whose statistics are close to those of photographs: public, because nobody took them."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

LEAVES = 60
_SMALLEST = 1.0
"""Of the radii, in pixels."""
_GRAIN = 0.02


def dead_leaves(count: int, shape: tuple[int, int, int], seed: int = 0) -> Tensor:
    """(count, *shape) in [0, 1]: ellipses and rectangles of random place, direction and colour, each over what was there before.

    Radii r have the density ∝ 1/r³ between one pixel and half of the image, which makes the images alike at all scales, as photographs
    are; each leaf gets a little darker towards one side; there is some grain, and a blur of one pixel.

    Args:
        count: of the images.
        shape: channels, height and width of one.
        seed: the same seed draws the same images.

    Source: Lee, Mumford and Huang, Occlusion models for natural images (2001); for learning without photographs Baradad et al., Learning
    to see by looking at noise (2021).

    Examples:
        >>> tuple(dead_leaves(2, (3, 16, 16)).shape)
        (2, 3, 16, 16)
    """
    channels, height, width = shape
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *more: int) -> Tensor:
        """A number for each image."""
        return low + (high - low) * torch.rand(count, *more, 1, 1, generator=generator)

    images = uniform(0, 1, channels).expand(count, *shape)
    rows, columns = torch.arange(height)[:, None] + 0.5, torch.arange(width) + 0.5
    largest = max(2 * _SMALLEST, min(height, width) / 2)
    for _ in range(LEAVES):
        radius = (_SMALLEST**-2 + uniform(0, 1) * (largest**-2 - _SMALLEST**-2)).rsqrt()
        across, down = columns - uniform(0, width), rows - uniform(0, height)
        angle, flat = uniform(0, math.pi), uniform(0.4, 1)
        along = (across * angle.cos() + down * angle.sin()) / radius
        beside = (down * angle.cos() - across * angle.sin()) / (radius * flat)
        ellipse, rectangle = along**2 + beside**2 < 1, (along.abs() < 1) & (beside.abs() < 1)
        covered = torch.where(uniform(0, 1) < 0.5, ellipse, rectangle).unsqueeze(1)
        shade = 1 + uniform(-0.15, 0.15) * along
        images = torch.where(covered, (uniform(0, 1, channels) * shade.unsqueeze(1)).clamp(0, 1), images)
    images = images + _GRAIN * torch.randn(images.shape, generator=generator)
    blur = torch.tensor([0.25, 0.5, 0.25])
    kernel = (blur[:, None] * blur).expand(channels, 1, 3, 3)
    padded = functional.pad(images, (1, 1, 1, 1), mode="reflect")
    return functional.conv2d(padded, kernel, groups=channels).clamp(0, 1)
