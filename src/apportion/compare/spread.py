"""Numbers of a table as several inputs, so that one layer can learn a curve of each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

KNOTS = 8
"""Of the hat functions of one number: with 5 a table of diamonds lost 1.5 points, and more of them helped there and hurt small tables
(`reproduction/rules`)."""


class Spread(nn.Module):
    """x in [0, 1] becomes 2·x − 1 and max(0, 1 − 7·|x − k/7|) for k = 0 … 7; inputs that are no numbers stay as they are.

    A linear layer on it is a sum of curves, one of each number, straight between eight points: an additive model. Only two hats of a number
    are not zero, so a record stays about as long as it was.

    Args:
        width: the inputs of a record.
        numbers: which of them are numbers.

    Source: hat functions as in Hastie and Tibshirani, Generalized additive models (1990), with linear splines.
    Guarantee: it is a fixed formula of one record, so it costs nothing.

    Examples:
        >>> from apportion.compare.spread import Spread
        >>> import torch
        >>> Spread(2, numbers=[1])(torch.tensor([[1.0, 0.5]])).tolist()
        [[0.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.0, 0.0, 0.0, 1.0]]
    """

    def __init__(self, width: int, numbers: Sequence[int]):
        super().__init__()
        others = [place for place in range(width) if place not in set(numbers)]
        self.width = spread_width(width, len(numbers))
        self.register_buffer("_numbers", torch.tensor(list(numbers), dtype=torch.long), persistent=False)
        self.register_buffer("_others", torch.tensor(others, dtype=torch.long), persistent=False)
        self.register_buffer("_knots", torch.linspace(0, 1, KNOTS), persistent=False)

    _numbers: Tensor
    _others: Tensor
    _knots: Tensor

    def forward(self, inputs: Tensor) -> Tensor:
        numbers = inputs.index_select(1, self._numbers)
        hats = (1 - (KNOTS - 1) * (numbers.unsqueeze(2) - self._knots).abs()).clamp(min=0)
        return torch.cat([2 * numbers - 1, hats.flatten(1), inputs.index_select(1, self._others)], 1)


def spread_width(width: int, numbers: int) -> int:
    """How many inputs become of `width` inputs, of which this many are numbers."""
    return width + KNOTS * numbers
