"""From NumPy arrays to the tensors of a `DataSet`, with fixed scaling only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from apportion.errors import InvalidArgument

Pair = tuple[torch.Tensor, torch.Tensor]


def images(pixels: np.ndarray[Any, Any]) -> torch.Tensor:
    """Bytes 0 … 255 of shape (N, C, H, W) as float32 in [0, 1]."""
    scaled = np.array(pixels, dtype=np.float32, order="C")
    scaled /= 255
    return torch.from_numpy(scaled)


def targets(numbers: Any, classes: int, path: Path) -> torch.Tensor:
    """Class numbers as int64; `path` is named if one of them is not in 0 … classes-1."""
    labels = np.array(numbers, dtype=np.int64).reshape(-1)
    if labels.size and not (labels.min() >= 0 and labels.max() < classes):
        raise InvalidArgument(
            "file", str(path), f"it has labels outside 0 … {classes - 1}", "Check that it belongs to this data set"
        )
    return torch.from_numpy(labels)


def pair(inputs: torch.Tensor, labels: torch.Tensor, shape: tuple[int, ...], path: Path) -> Pair:
    """(inputs, labels), after checking that there is one label for each input and that inputs have the published shape."""
    if len(inputs) != len(labels):
        raise InvalidArgument(
            "file", str(path), f"{len(inputs)} inputs but {len(labels)} labels", "Fetch the data set again"
        )
    if tuple(inputs.shape[1:]) != shape:
        raise InvalidArgument(
            "file",
            str(path),
            f"its records have the shape {tuple(inputs.shape[1:])} and not {shape}",
            "Check that it belongs to this data set",
        )
    return inputs, labels
