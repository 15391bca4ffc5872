"""What noise is added. Every value that leaves the curator went through one of these functions.

The curator calls them through this module, which is the `Mechanisms` of a real run; audits put instruments in its place.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from apportion.curator.randomness import Stream
from apportion.releases import FirstGain, LowestLoss

NOISE_CHUNK_NUMBERS = 1 << 18
"""Numbers that get their noise at a time: they stay in the caches, and memory does not grow with the parameter."""


class Mechanisms(Protocol):
    """The ways out of the curator: the functions of this module, or instruments of the audit around them."""

    def add_gaussian_noise(
        self, exact_sum: Tensor, standard_deviation: float, noise: Stream, divisor: float
    ) -> Tensor: ...

    def noisy_argmin(self, totals: Tensor, release: LowestLoss, noise: Stream) -> int: ...

    def above_threshold(self, gains: Tensor, release: FirstGain, noise: Stream) -> int | None: ...


def add_gaussian_noise(exact_sum: Tensor, standard_deviation: float, noise: Stream, divisor: float) -> Tensor:
    """(exact_sum + N(0, s²·I)) / divisor, s = `standard_deviation`: computed in float64, then rounded to the type of the sum.

    The answer is written over the sum, of which nothing is left. The divisor must be public. The stream is on the CPU, and so is this
    addition, wherever the sum is: the noise of a seed is the same on every device, and one without float64 needs none.
    Guarantee: if one record moves `exact_sum` by at most Δ in L2 norm, this is a Gaussian mechanism with multiplier s/Δ.
    """
    answer = exact_sum.contiguous()
    for part in answer.view(-1).split(NOISE_CHUNK_NUMBERS):
        noisy = torch.from_numpy(noise.normals(part.numel()))
        part.copy_(noisy.mul_(standard_deviation).add_(part.cpu()).div_(divisor))  # in place: the normals are used once
    return answer


def noisy_argmin(totals: Tensor, release: LowestLoss, noise: Stream) -> int:
    """argmin_j (Ω_j − X_j), X_j Gumbel or exponential with the scale of `release`; of equal ones the first.

    Guarantee: ε₀-DP if one record adds to every Ω_j between 0 and C_obj (`LowestLoss`). The sign matters: noise is *taken off*.
    """
    draws = noise.exponentials(len(totals))
    variables = -np.log(draws) if release.noise == "gumbel" else draws
    return int(np.argmin(totals.numpy() - release.scale * variables))


def above_threshold(gains: Tensor, release: FirstGain, noise: Stream) -> int | None:
    """The first j with G_j + Lap(2Δ/ε₂) ≥ Lap(Δ/ε₁); `None` if there is none. All noise is drawn, whatever j is.

    Guarantee: (ε₁+ε₂)-DP if one record moves each G_j by at most Δ (`FirstGain`).
    """
    threshold_scale, gain_scale = release.scales
    threshold = threshold_scale * noise.laplaces(1)
    above = np.flatnonzero(gains.numpy() + gain_scale * noise.laplaces(len(gains)) >= threshold)
    return int(above[0]) if len(above) else None
