"""Small parameters, and whatever has no rule of its own: the gradient of every record is written out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from apportion.curator.gradients.rounding import squared
from apportion.curator.gradients.use import added, wide, without


class WrittenOut:
    """A use whose rows are computed when the output's gradient arrives, or come from elsewhere.

    Args:
        compute: from the output's gradient to the rows (b, *shape) by the layer's own names.
    """

    kernel = "materialised"

    def __init__(self, names: Mapping[str, str], compute: Callable[[Tensor], Mapping[str, Tensor]]):
        self.names, self._compute = names, compute
        self._rows: dict[str, Tensor] = {}

    def receive(self, output_gradient: Tensor) -> None:
        found = self._compute(output_gradient)
        self._rows = {name: wide(found[own]) for own, name in self.names.items()}

    def squared_norms(self) -> dict[str, Tensor]:
        return {name: squared(rows) for name, rows in self._rows.items()}

    def weighted_sums(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: added(weights[name], rows) for name, rows in self._rows.items()}

    def rows(self, name: str, records: slice) -> Tensor:
        return self._rows[name][records]

    def silence(self, records: Tensor) -> None:
        self._rows = {name: without(records, rows) for name, rows in self._rows.items()}
