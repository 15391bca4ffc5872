"""What noise is added. Every value that leaves the curator went through one of these functions."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from apportion.curator.randomness import Stream

NOISE_CHUNK_NUMBERS = 1 << 18
"""Numbers that get their noise at a time: they stay in the caches, and memory does not grow with the parameter."""


class Mechanism(Protocol):
    """Adds noise to an exact sum and divides: `add_gaussian_noise`, or an instrument of the audit around it."""

    def __call__(self, exact_sum: Tensor, standard_deviation: float, noise: Stream, divisor: float) -> Tensor: ...


def add_gaussian_noise(exact_sum: Tensor, standard_deviation: float, noise: Stream, divisor: float) -> Tensor:
    """(exact_sum + N(0, s²·I)) / divisor, s = `standard_deviation`: computed in float64, then rounded to the type of the sum.

    The answer is written over the sum, of which nothing is left. The divisor must be public.
    Guarantee: if one record moves `exact_sum` by at most Δ in L2 norm, this is a Gaussian mechanism with multiplier s/Δ.
    """
    answer = exact_sum.contiguous()
    for part in answer.view(-1).split(NOISE_CHUNK_NUMBERS):
        noisy = torch.from_numpy(noise.normals(part.numel())).to(part.device)
        part.copy_(noisy.mul_(standard_deviation).add_(part).div_(divisor))  # in place: the normals are used once
    return answer
