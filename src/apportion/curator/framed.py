"""Clipping in coordinates of its own: (g_i − m)/b for every record i, which has to be written out, a few records at a time.

In float64 from the first subtraction on: m may be far larger than what is left of g_i − m, and the bound holds for that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from apportion.request import Frame

if TYPE_CHECKING:
    from apportion.curator.clipping import Gradients

PIECE = 1 << 17
"""Numbers that are written out at a time: in float64 they stay in a core's cache."""


def squared_norms(records: Gradients, name: str, frame: Frame) -> Tensor:
    """‖(g_i − m)/b‖² for one parameter, (b,)."""
    squares = [torch.linalg.vector_norm(rows, dim=1).square() for _, rows in _rows(records, name, frame)]
    return torch.cat([torch.zeros(0, dtype=torch.float64), *squares])


def weighted_sum(records: Gradients, name: str, frame: Frame, weights: Tensor) -> Tensor:
    """Σ_i w_i·(g_i − m)/b for one parameter."""
    total = torch.zeros(frame.scale[name].numel(), dtype=torch.float64)
    for part, rows in _rows(records, name, frame):
        silent = weights[part] == 0
        if silent.any():  # a silenced record may be anything but finite in this frame: its weight of 0 must not meet it
            rows[silent] = 0.0
        total += weights[part] @ rows
    return total.reshape(frame.scale[name].shape)


def flat(rows: Tensor) -> Tensor:
    """(n, numbers); a parameter may be a single number."""
    return rows.flatten(1) if rows.dim() > 1 else rows.unsqueeze(1)


def _rows(records: Gradients, name: str, frame: Frame) -> Iterator[tuple[slice, Tensor]]:
    centre, scale = frame.centre[name].double().flatten(), frame.scale[name].double().flatten()
    few = max(1, PIECE // max(1, centre.numel()))
    for start in range(0, len(records), few):
        part = slice(start, min(start + few, len(records)))
        rows = flat(records.rows(name, part))
        yield part, (rows - centre).div_(scale)  # float64, and a tensor of its own
