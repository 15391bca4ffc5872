"""From what a client sent to one vector that can be clipped, or to nothing.

The curator sums gradients, of which an optimiser subtracts the mean; an update is to be added. So a client's vector is g = −Δ.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from apportion.curator.clipping import Rows
from apportion.curator.dense_tensors import as_dense_tensor, copy_dense_tensor
from apportion.devices import has_float64


def read_update(update: object, parameters: Mapping[str, Tensor]) -> Rows:
    """−Δ of one client, a row for each trained parameter, in float64; raises for whatever is no update of these parameters.

    Values that are not finite, or of any size, are passed on: clipping knows what to do with them.

    Args:
        update: Δ, by the names of the parameters: tensors or arrays of floating-point numbers.
        parameters: what is trained.
    """
    if not isinstance(update, Mapping) or set(update) != set(parameters):
        raise ValueError("an update holds every trained parameter once, and nothing else")
    return {name: _row(update[name], parameter) for name, parameter in parameters.items()}


def _row(value: object, parameter: Tensor) -> Tensor:
    if not isinstance(value, (Tensor, np.ndarray)):
        raise TypeError("an update consists of tensors or arrays")
    tensor = as_dense_tensor(value)
    if not tensor.is_floating_point() or tensor.shape != parameter.shape:
        raise ValueError("a part of an update has another shape than its parameter, or holds no floating-point numbers")
    wide = torch.float64 if has_float64(parameter.device.type) else torch.float32
    return copy_dense_tensor(tensor, wide, parameter.device).neg_().unsqueeze(0)
