"""The 1,797 digits of 8x8 pixels that come with scikit-learn: the data set that needs no files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from apportion.data.entry import DataSet, Entry
from apportion.extras import require_extra

LARGEST_VALUE = 16


def read(entry: Entry, _: Path) -> DataSet:
    """A fixed permutation; its first 1,437 records train and the other 360 test."""
    require_extra("data", "sklearn")
    from sklearn.datasets import load_digits

    content = load_digits()
    permutation = np.random.RandomState(0).permutation(len(content.target))
    inputs = torch.from_numpy((content.images[permutation] / LARGEST_VALUE).astype(np.float32)[:, None])
    labels = torch.from_numpy(content.target[permutation].astype(np.int64))
    cut = entry.population
    return entry.dataset((inputs[:cut], labels[:cut]), (inputs[cut:], labels[cut:]), "scikit-learn")
