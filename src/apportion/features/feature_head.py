"""What is trained on features."""

from __future__ import annotations

from torch import nn


def linear_head(width: int, classes: int) -> nn.Module:
    """One linear layer whose weights begin at zero, so that the first gradient of a record is about the record alone.

    Args:
        width: of the features, as of `Extractor.width`.
        classes: outputs.

    Examples:
        >>> import apportion as ap
        >>> ap.features.linear_head(3969, 10)
        Linear(in_features=3969, out_features=10, bias=True)
    """
    head = nn.Linear(width, classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head
