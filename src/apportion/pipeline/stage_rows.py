"""The gradients of a chunk's records for the parameters of one stage, under the names that these have in the whole model."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from apportion.curator.clipping import Gradients


class StageRows:
    """Some rows of a chunk; the others count nowhere.

    Args:
        gradients: of all rows, by the names of the stage.
        stage: its number.
        rows: which ones, (n,).
    """

    def __init__(self, gradients: Gradients, stage: int, rows: Tensor):
        self._gradients, self._prefix, self._rows = gradients, f"{stage}.", rows
        others = torch.ones(len(gradients), dtype=torch.bool)
        others[rows] = False
        if others.any():  # NaN times a weight of zero would still be NaN
            gradients.zero_records(others)

    def squared_norms(self) -> dict[str, Tensor]:
        found = self._gradients.squared_norms()
        return {self._prefix + name: norms[self._rows.to(norms.device)] for name, norms in found.items()}

    def zero_records(self, records: Tensor) -> None:
        chosen = torch.zeros(len(self._gradients), dtype=torch.bool)
        chosen[self._rows] = records.cpu()
        self._gradients.zero_records(chosen)

    def weighted_sums(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        placed = {}
        for name, own in weights.items():
            every = own.new_zeros(len(self._gradients))
            every[self._rows.to(own.device)] = own
            placed[name.removeprefix(self._prefix)] = every
        return {self._prefix + name: total for name, total in self._gradients.weighted_sums(placed).items()}

    def rows(self, name: str, records: slice) -> Tensor:
        every = self._gradients.rows(name.removeprefix(self._prefix), slice(0, len(self._gradients)))
        return every[self._rows[records].to(every.device)]

    def __len__(self) -> int:
        return len(self._rows)
