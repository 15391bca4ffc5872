"""Whatever a person's data set hands out, as ordinary tensors that are nobody else's.

A tensor may be sparse, quantized, nested or of a subclass with ideas of its own, lie on another device, need a gradient, be a view that
negates or conjugates, or have rows that all lie in one place. Two of different makes cannot be put into one batch, and a batch that fails
takes all its records with it. So every number of a record is copied into a dense tensor as soon as it is read, and what cannot be copied
fails there, alone. Copied *before the next record is read*: a data set may write all of them into one buffer.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ATOMS = (int, float, complex, str, bytes, type(None), np.generic)
"""What has no parts and cannot be changed."""


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


def share_memory(items: Sequence[Any]) -> bool:
    """Whether two of these records lie in the same memory, so that they cannot be told apart.

    Rows of one tensor do not: what is compared is from the first to the last number of each. A list or a dict that two records share
    counts as well, and whatever else is no number.
    """
    spans: list[tuple[int, int]] = []
    for item in items:
        spans.extend(
            {_memory_span(part) for part in _mutable_parts(item)}
        )  # an item may hold one thing twice, as (x, x)
    return any(end > start for (_, end), (start, _) in pairwise(sorted(spans)))


def _as_native_order(array: NDArray[Any]) -> NDArray[Any]:
    """In the byte order of this machine and without steps backwards, neither of which torch has."""
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return np.ascontiguousarray(array) if any(step < 0 for step in array.strides) else array


def _mutable_parts(value: Any) -> Iterator[Any]:
    """All that makes up a record: its containers that can be changed, and what they hold."""
    if isinstance(value, _ATOMS):
        return
    if not isinstance(value, tuple):
        yield value
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for part in value:
            yield from _mutable_parts(part)


def _memory_span(part: Any) -> tuple[int, int]:
    """Where it begins in memory, and where it ends."""
    if isinstance(part, np.ndarray):
        return np.lib.array_utils.byte_bounds(part)
    if isinstance(part, Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            if part.layout is torch.strided and not part.is_nested and not part.is_meta and part.numel():
                steps = sum((size - 1) * step for size, step in zip(part.shape, part.stride(), strict=True))
                return part.data_ptr(), part.data_ptr() + (steps + 1) * part.element_size()
    return id(part), id(part) + 1
