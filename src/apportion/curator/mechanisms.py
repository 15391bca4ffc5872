"""What noise is added. Every value that leaves the curator went through one of these functions.

The curator calls them through this module, which is the `Mechanisms` of a real run; audits put instruments in its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apportion.curator.randomness import Stream
from apportion.curator.ziggurat import Floats
from apportion.releases import FirstGain, LowestLoss

_NUMPY_TYPES = (torch.float32, torch.float64)
PIECE_NUMBERS = 1 << 22
"""Numbers of a sum that are on the CPU at a time, if they are elsewhere or of a type that NumPy lacks: memory does not grow with the
parameter."""


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
    addition, wherever the sum is: the noise of a seed is the same on every device, and one without float64 needs none. A large sum is
    shared by as many threads as torch has, which changes no bit.
    Guarantee: if one record moves `exact_sum` by at most Δ in L2 norm, this is a Gaussian mechanism with multiplier s/Δ.
    """
    answer = exact_sum.contiguous()
    flat = answer.view(-1)
    normals = noise.normals_of_a_release(flat.numel())
    in_place = flat.device.type == "cpu" and flat.dtype in _NUMPY_TYPES
    start = 0
    for part in [flat] if in_place else flat.split(PIECE_NUMBERS):
        here = part if in_place else part.cpu().to(torch.float64)
        add = _Addition(here.numpy(), start, standard_deviation, divisor)
        normals.each_block(start, len(part), add, torch.get_num_threads())
        if not in_place:
            part.copy_(here)
        start += len(part)
    return answer


@dataclass(frozen=True)
class _Addition:
    """(sum + s·normals) / divisor, written over the sum, for any part of it and in any thread: NumPy starts no threads of its own."""

    exact: NDArray[Any]
    start: int
    standard_deviation: float
    divisor: float

    def __call__(self, first: int, normals: Floats) -> None:
        part = self.exact[first - self.start :][: len(normals)]
        with np.errstate(all="ignore"):  # what a sum is like is nobody's business
            normals *= self.standard_deviation  # in place: the normals are used once
            normals += part
            normals /= self.divisor
            part[...] = normals


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
