"""Data sets that differ by one record, chosen to be as different as one record can make them.

All of them share the `common` records and have at most one record more, at the end, which is in every batch. So the pair
(D, D′) is a pair of last records, either of which may be missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from apportion.curator.clipping import as_gradients
from apportion.curator.curator import LossFunction
from apportion.curator.gradients.engine import EngineChoice, build_engine
from apportion.curator.records import Batch, Records, as_records
from apportion.curator.tree import map_tensors, tensor_leaves
from apportion.models.gradient_probe import run_engine

_SCALES = (1.0, 10.0, 1e3, 1e6)
_OVERFLOW = 1e30
_OUT_OF_RANGE = 2**31 - 1
_TARGETS = 4  # different targets that are tried for the record with the largest gradient


@dataclass(frozen=True, eq=False)
class Neighbour:
    """A pair (D, D′), described by the last record of each.

    Args:
        name: for people.
        before, after: the last record of D and of D′, a batch of one; `None` if there is none.
        multiple: how many times the sensitivity the two may lie apart: 1 if a record is added or removed, 2 if one is replaced.
        readable: whether reading the last record of D′ works.
    """

    name: str
    before: Batch | None
    after: Batch | None
    multiple: float = 1.0
    readable: bool = True


def records_with(
    common: Batch, last: Batch | None, read: Callable[[NDArray[np.int64]], None], readable: bool, copies: int = 1
) -> Records:
    """`common`, followed by `last`, which is there `copies` times; `read` is told which records are read."""
    both = common if last is None else map_tensors(lambda *parts: torch.cat(parts), common, *[last] * copies)
    records = as_records(both)
    unreadable = None if readable else len(records) - 1

    def batch(indices: NDArray[np.int64]) -> Batch:
        read(indices)
        if unreadable is not None and unreadable in indices:
            raise OSError("this record cannot be read")
        return records.batch(indices)

    return Records(len(records), batch, records.example)


def neighbours(record: Batch, outlier: Batch, *, broken: bool) -> tuple[Neighbour, ...]:
    """The pairs made of an ordinary record and an outlier.

    Args:
        broken: also records that no model or loss can evaluate. `train` lets them contribute zero; a loop of a person's own
            raises, which is the person's duty to prevent.
    """
    inputs, target = record
    pairs = [
        Neighbour("record added", None, record),
        Neighbour("record removed", record, None),
        Neighbour("outlier added", None, outlier),
        Neighbour("replaced by outlier", record, outlier, multiple=2.0),
        Neighbour("unreadable record added", None, record, readable=False),
    ]
    if _any(inputs, torch.is_floating_point):
        changes: dict[str, Callable[[Tensor], Tensor]] = {
            "NaN": _all_nan,
            "infinity": lambda tensor: torch.full_like(tensor, torch.inf),
            f"inputs × {_OVERFLOW:g}": lambda tensor: tensor * _OVERFLOW,
        }
        pairs += [
            Neighbour(f"{name} added", None, (_floats(inputs, change), target)) for name, change in changes.items()
        ]
        pairs.append(Neighbour("replaced by NaN", record, (_floats(inputs, _all_nan), target), multiple=2.0))
    if broken and _any(inputs, _is_integer):
        pairs.append(Neighbour("number out of range added", None, (_integers(inputs, _out_of_range), target)))
    if broken and _any(target, _is_integer):
        pairs.append(Neighbour("label out of range added", None, (inputs, _integers(target, _out_of_range))))
    if _any(target, torch.is_floating_point):
        pairs.append(Neighbour("NaN target added", None, (inputs, _floats(target, _all_nan))))
    return tuple(pairs)


def outlier_of(
    model: nn.Module, loss_fn: LossFunction | None, choice: EngineChoice, common: Batch, record: Batch
) -> Batch:
    """Of many variants of a record the one with the largest finite gradient, so that its contribution is really clipped.

    Tried are inputs of 1 to 10⁶ times the size (of a text, also its largest number everywhere) with the targets of other records.
    """
    inputs, target = record
    largest = map_tensors(
        lambda own, everyone: torch.full_like(own, everyone.max()) if _is_integer(own) else own, inputs, common[0]
    )
    targets = [target, *(map_tensors(lambda tensor, i=i: tensor[i : i + 1], common[1]) for i in range(_TARGETS))]
    variants = [
        _floats(variant, partial(torch.mul, other=scale))
        for scale, variant in product(_SCALES, product([inputs, largest], targets))
    ]
    norms = _gradient_norms(model, loss_fn, choice, map_tensors(lambda *tensors: torch.cat(tensors), *variants))
    best: Batch = variants[int(torch.where(norms.isfinite(), norms, -1.0).argmax())]
    return best


def _gradient_norms(model: nn.Module, loss_fn: LossFunction | None, choice: EngineChoice, batch: Batch) -> Tensor:
    """‖g_i‖ of every record; zeros if one of them cannot be evaluated."""
    try:
        gradients = run_engine(build_engine(model, choice), loss_fn, batch)
    except Exception:
        return torch.zeros(1)
    with torch.no_grad():
        squares = as_gradients(gradients).squared_norms()
    return torch.stack(list(squares.values())).sum(0).sqrt()


def _is_integer(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool


def _any(tree: Any, kind: Callable[[Tensor], bool]) -> bool:
    return any(kind(tensor) for tensor in tensor_leaves(tree))


def _floats(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    return map_tensors(lambda tensor: change(tensor) if tensor.is_floating_point() else tensor, tree)


def _integers(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    return map_tensors(lambda tensor: change(tensor) if _is_integer(tensor) else tensor, tree)


def _all_nan(tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, torch.nan)


def _out_of_range(tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, min(_OUT_OF_RANGE, torch.iinfo(tensor.dtype).max))
