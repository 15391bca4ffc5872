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
from typing import Protocol

import torch
from torch import Tensor

from apportion.request import ClippedSum

Rows = Mapping[str, Tensor]
"""For each trained parameter the gradients of b records: a tensor (b, *shape of the parameter)."""


class Gradients(Protocol):
    """The gradients of b records, written out or not."""

    def squared_norms(self) -> dict[str, Tensor]:
        """‖g_i‖² for each trained parameter, (b,), in float64 and never too small by more than the headroom."""
        ...

    def silence(self, records: Tensor) -> None:
        """Forget the records of a mask (b,): what is not finite must not even meet a weight of zero."""
        ...

    def weighted_sums(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Σ_i w_i·g_i for each trained parameter, for weights (b,) by name."""
        ...


class WrittenRows:
    """Gradients that are written out. All arithmetic in float64, so that rounding stays far below the headroom."""

    def __init__(self, rows: Rows):
        self._rows = dict(rows)

    def squared_norms(self) -> dict[str, Tensor]:
        return {
            name: torch.linalg.vector_norm(rows.flatten(1), dim=1, dtype=torch.float64).square()
            for name, rows in self._rows.items()
        }

    def silence(self, records: Tensor) -> None:
        for name, rows in self._rows.items():
            self._rows[name] = torch.where(records.reshape(-1, *[1] * (rows.dim() - 1)), 0.0, rows)

    def weighted_sums(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: (weights[name] @ rows.flatten(1).to(torch.float64)).reshape(rows.shape[1:])
            for name, rows in self._rows.items()
        }


def group_names(release: ClippedSum, trained: Sequence[str]) -> tuple[str, ...]:
    """The parameters of a release, written out."""
    return tuple(trained) if release.parameters is None else release.parameters


def held(gradients: Gradients | Rows) -> Gradients:
    """Gradients in the one form that clipping knows."""
    return WrittenRows(gradients) if isinstance(gradients, Mapping) else gradients


def clipped_sums(gradients: Gradients | Rows, releases: Sequence[ClippedSum]) -> dict[str, Tensor]:
    """Σ_i g_i·min(1, C/‖g_i‖) for each release, by parameter, where ‖g_i‖ is taken over the parameters of the release."""
    records = held(gradients)
    squares = records.squared_norms()
    groups = [group_names(release, list(squares)) for release in releases]
    norms = [torch.stack([squares[name] for name in names]).sum(0).sqrt() for names in groups]
    finite = torch.stack([norm.isfinite() for norm in norms]).all(0)
    if not finite.all():
        records.silence(~finite)
    weights: dict[str, Tensor] = {}
    for release, names, norm in zip(releases, groups, norms, strict=True):
        # A norm of 0 gives an infinite quotient, which the bound at 1 turns into "unclipped".
        factors = torch.where(finite, (release.threshold / norm).clamp(max=1.0), 0.0)
        weights |= dict.fromkeys(names, factors)
    return records.weighted_sums(weights)
