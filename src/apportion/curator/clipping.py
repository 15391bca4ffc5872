"""From the gradients of single records to their clipped sum.

Edge cases, each with a test:

| record                               | contribution                                   |
|--------------------------------------|------------------------------------------------|
| ‖g‖ ≤ C (zero included)              | g itself                                       |
| ‖g‖ > C                              | g·C/‖g‖                                        |
| any entry NaN or infinite, any group | 0 in every group: the rest of the batch stays  |
| finite, but ‖g‖² overflows           | 0                                              |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from apportion.request import ClippedSum

Rows = Mapping[str, Tensor]
"""For each trained parameter the gradients of b records: a tensor (b, *shape of the parameter)."""


def group_names(release: ClippedSum, trained: Sequence[str]) -> tuple[str, ...]:
    """The parameters of a release, written out."""
    return tuple(trained) if release.parameters is None else release.parameters


def record_norms(rows: Rows, names: Sequence[str]) -> Tensor:
    """‖g_i‖ over the named parameters for each record i, in float64 so that rounding stays far below the headroom."""
    squares = [torch.linalg.vector_norm(rows[name].flatten(1), dim=1, dtype=torch.float64).square() for name in names]
    return torch.stack(squares).sum(0).sqrt()


def clipped_sums(rows: Rows, releases: Sequence[ClippedSum]) -> dict[str, Tensor]:
    """Σ_i g_i·min(1, C/‖g_i‖) for each release, by parameter, in float64."""
    groups = [group_names(release, list(rows)) for release in releases]
    norms = [record_norms(rows, names) for names in groups]
    finite = torch.stack([norm.isfinite() for norm in norms]).all(0)
    sums = {}
    for release, names, norm in zip(releases, groups, norms, strict=True):
        # A norm of 0 gives an infinite quotient, which the bound at 1 turns into "unclipped".
        factors = torch.where(finite, (release.threshold / norm).clamp(max=1.0), 0.0)
        for name in names:
            flat = rows[name].flatten(1).to(torch.float64)
            flat = torch.where(finite.unsqueeze(1), flat, 0.0)  # 0·NaN would be NaN
            sums[name] = (factors @ flat).reshape(rows[name].shape[1:])
    return sums
