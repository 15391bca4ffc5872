"""What noise is added. Every value that leaves the curator went through one of these functions."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from apportion.curator.randomness import Stream


class Mechanism(Protocol):
    """Adds noise to an exact sum: `gaussian`, or an instrument of the audit around it."""

    def __call__(self, exact_sum: Tensor, standard_deviation: float, noise: Stream) -> Tensor: ...


def gaussian(exact_sum: Tensor, standard_deviation: float, noise: Stream) -> Tensor:
    """exact_sum + N(0, s²·I), s = `standard_deviation`, in float64.

    Guarantee: if one record moves `exact_sum` by at most Δ in L2 norm, this is a Gaussian mechanism with multiplier s/Δ.
    """
    noisy: Tensor = torch.from_numpy(noise.normals(exact_sum.numel())).reshape(exact_sum.shape).to(exact_sum.device)
    return noisy.mul_(standard_deviation).add_(exact_sum)  # in place: the normals are used once
