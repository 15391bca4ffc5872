"""Whatever a person's data set hands out, as ordinary tensors that are nobody else's.

A tensor may be sparse, quantized, nested or of a subclass with ideas of its own, lie on another device, need a gradient, be a view that
negates or conjugates, or have rows that all lie in one place. Two of different makes cannot be put into one batch, and a batch that fails
takes all its records with it. So every number of a record is copied into a dense tensor as soon as it is read, and what cannot be copied
fails there, alone. Copied *before the next record is read*: a data set may write all of them into one buffer.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def as_dense_tensor(value: Any) -> Tensor:
    """`value` as a dense tensor of torch's own class without a history, in the same memory if possible; `TypeError` if it is none."""
    if isinstance(value, np.ndarray):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nor is it written to
            return torch.from_numpy(_as_native_order(value))
    tensor = value if isinstance(value, Tensor) else torch.as_tensor(value)
    with torch._C.DisableTorchFunctionSubclass():
        _require_dense(tensor)
        return tensor.detach().as_subclass(Tensor).resolve_conj().resolve_neg()


def copy_dense_tensor(value: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`value` in a dense tensor with memory of its own."""
    if isinstance(value, np.ndarray):
        value = as_dense_tensor(value)
    if not isinstance(value, Tensor):
        return torch.tensor(value, dtype=dtype, device=device)  # a copy, also of a list
    with torch._C.DisableTorchFunctionSubclass():
        _require_dense(value)
        return torch.empty(value.shape, dtype=dtype, device=device).copy_(value.detach())


def _require_dense(tensor: Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_meta:
        raise TypeError("only dense tensors that hold numbers can be stacked")


def _as_native_order(array: NDArray[Any]) -> NDArray[Any]:
    """In the byte order of this machine and without steps backwards, neither of which torch has."""
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return np.ascontiguousarray(array) if any(step < 0 for step in array.strides) else array
