"""A short description of where a run stands, by which its ranks see that they are at the same place."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from apportion.request import Request

_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def state_digest(request: Request, parameters: Mapping[str, Tensor]) -> bytes:
    """Of what is asked next, to the last bit of its thresholds and multipliers, and of each parameter.

    Thresholds, multipliers and directions are what the strategies made of all answers so far. Two ranks whose weights differ have other
    sums, unless somebody arranges it: it finds faults, and keeps nobody out.
    """
    seen = hashlib.blake2b(repr(_plain(request)).encode(), digest_size=16)
    for name, parameter in parameters.items():
        seen.update(f"{name} {_total(parameter)!r}".encode())
    return seen.digest()


def _plain(value: Any) -> Any:
    """Nested tuples of what `repr` writes down exactly."""
    if isinstance(value, Tensor):
        return tuple(value.shape), _total(value)
    if isinstance(value, Mapping):
        return tuple((key, _plain(one)) for key, one in value.items())
    if isinstance(value, (tuple, list)):
        return tuple(_plain(one) for one in value)
    if is_dataclass(value):
        return (type(value).__name__, *(_plain(getattr(value, field.name)) for field in fields(value)))
    return value


def _total(tensor: Tensor) -> int:
    """The sum of the bits of all numbers, read as whole ones: in any order, by any number of threads, the same."""
    plain = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    return int(plain.view(_WHOLE[plain.element_size()]).sum(dtype=torch.int64))
