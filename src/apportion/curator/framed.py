"""Clipping in coordinates of its own: (g_i − m)/b for every record i, which has to be written out, a few records at a time.

In float64 from the first subtraction on: m may be far larger than what is left of g_i − m, and the bound holds for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from apportion.curator.gradients.use import chunks
from apportion.request import Frame

if TYPE_CHECKING:
    from apportion.curator.clipping import Gradients


def squared_norms(records: Gradients, name: str, frame: Frame) -> Tensor:
    """‖(g_i − m)/b‖² for one parameter, (b,)."""
    squares = [rows.square().sum(1) for _, rows in _rows(records, name, frame)]
    return torch.cat([torch.zeros(0, dtype=torch.float64), *squares])


def weighted_sum(records: Gradients, name: str, frame: Frame, weights: Tensor) -> Tensor:
    """Σ_i w_i·(g_i − m)/b for one parameter."""
    total = torch.zeros(frame.scale[name].numel(), dtype=torch.float64)
    for part, rows in _rows(records, name, frame):
        # A silenced record may be anything but finite in this frame: its weight of 0 must not meet it.
        weight = weights[part]
        total = total + weight @ torch.where((weight == 0)[:, None], 0.0, rows)
    return total.reshape(frame.scale[name].shape)


def _rows(records: Gradients, name: str, frame: Frame) -> Iterator[tuple[slice, Tensor]]:
    for part in chunks(len(records), frame.scale[name].numel()):
        yield part, frame.standardised(name, records.rows(name, part).double()).flatten(1)
