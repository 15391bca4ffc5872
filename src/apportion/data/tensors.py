"""From NumPy arrays to the tensors of a `DataSet`, with fixed scaling only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from apportion.data import files
from apportion.data.entry import Entry

Pair = tuple[torch.Tensor, torch.Tensor]
_CHECK = "Check that it belongs to this data set"


def images(pixels: np.ndarray[Any, Any]) -> torch.Tensor:
    """Bytes 0 … 255 of shape (N, C, H, W) as float32 in [0, 1]."""
    scaled = np.array(pixels, dtype=np.float32, order="C")
    scaled /= 255
    return torch.from_numpy(scaled)


def targets(numbers: Any, classes: int, path: Path) -> torch.Tensor:
    """Class numbers as int64; `path` is named if one of them is not in 0 … classes-1."""
    labels = np.array(numbers, dtype=np.int64).reshape(-1)
    if labels.size and not (labels.min() >= 0 and labels.max() < classes):
        raise files.unfit(path, f"it has labels outside 0 … {classes - 1}", _CHECK)
    return torch.from_numpy(labels)


def pair(entry: Entry, inputs: torch.Tensor, numbers: Any, path: Path, labels_path: Path | None = None) -> Pair:
    """(inputs, targets), after checking that there is one label for each input and that inputs have the published shape.

    Args:
        numbers: the class numbers.
        path: of the inputs, to be named in errors; `labels_path` is that of the numbers, if it is another.
    """
    labels = targets(numbers, entry.classes, labels_path or path)
    if len(inputs) != len(labels):
        raise files.unfit(path, f"{len(inputs)} inputs but {len(labels)} labels", "Fetch the data set again")
    if tuple(inputs.shape[1:]) != entry.shape:
        raise files.unfit(path, f"its records have the shape {tuple(inputs.shape[1:])} and not {entry.shape}", _CHECK)
    return inputs, labels
