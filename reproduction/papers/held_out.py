"""Data sets without a twin: a fifth of their training records is held out, so that settings are chosen without the test records.

Which fifth a record is in follows from its content, so that equal records are in the same part. The ε of a run on all training records
does not cover a choice that was made on them: "selection not included".
"""

from __future__ import annotations

from functools import cache
from typing import Any
from zlib import crc32

import torch
from torch import nn

import reproduction.networks  # noqa: F401  (adds the papers' networks)
from apportion import data
from apportion.budget import Public
from apportion.compare.networks import build

PARTS = 5
_loaded = cache(data.load)
"""Texts take seconds to read, and every trial asks for a network that fits them."""


def imdb() -> tuple[Any, Public]:
    """Reviews: 20,052 train, 4,948 are held out."""
    return _split("imdb")


def imdb_network() -> nn.Module:
    """That of `imdb-mlp`."""
    return build("imdb-mlp", _loaded("imdb"))


def names() -> tuple[Any, Public]:
    """Surnames: 12,810 train, 3,258 are held out."""
    return _split("names")


def names_network() -> nn.Module:
    """That of `name-lstm`."""
    return build("name-lstm", _loaded("names"))


def _split(name: str) -> tuple[Any, Public]:
    inputs, targets = _loaded(name).train
    held = torch.tensor([crc32(row.tobytes()) % PARTS == 0 for row in inputs.numpy()])
    return (inputs[~held], targets[~held]), Public((inputs[held], targets[held]))
