"""The training records of the digits without one part, which is held out, so that settings can be chosen without the test records.

Held-out parts are the first and the second 360 of 1,437 records; the other 1,077 train.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from apportion import data
from apportion.budget import Public
from apportion.compare.networks import build
from apportion.curator.records import as_records
from apportion.curator.tree import map_tensors
from apportion.data import DataSet

HELD_OUT = 360
"""Records; as many as the test part has."""


def first() -> tuple[Any, Public]:
    """Without the first part, which is held out."""
    return _without(0)


def second() -> tuple[Any, Public]:
    """Without the second part."""
    return _without(1)


def network() -> nn.Module:
    """One hidden layer of 64, as of the demo."""
    return build("mlp", _digits())


def _digits() -> DataSet:
    return data.load("digits")


def _without(part: int) -> tuple[Any, Public]:
    import torch

    train = _digits().train
    rows = torch.arange(len(as_records(train)))
    held = (rows >= part * HELD_OUT) & (rows < (part + 1) * HELD_OUT)
    kept = map_tensors(lambda tensor: tensor[~held], train)
    return kept, Public(map_tensors(lambda tensor: tensor[held], train))
