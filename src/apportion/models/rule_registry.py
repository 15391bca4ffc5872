"""The table of rules, and what rules have in common.

A rule is handed the arguments by name and answers with the place of each result, or raises `RecordsMayMix`. It answers only if row i of the
result is made of row i of the arguments and of what belongs to no record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from apportion.models.record_tracer import ANY, Place, RecordsMayMix, RecordTracer, TracedTensor

Arguments = dict[str, Any]
Places = Any
"""A place, `None`, or a list of these for several results."""

CONSTANT_ROWS = "a constant has a row for each record, so that a record's place in the batch counts"
NUMBER_COUNTS = "the number of a record in its batch is computed with, so that its place in the batch counts"
OTHER_RECORDS = "records of one tensor meet other records of another"

RULES: dict[str, Callable[[Arguments, RecordTracer, str], Places]] = {}


class NoRule(Exception):
    """There is a rule, but not for these arguments: look for a decomposition."""


def rule(names: str) -> Callable[[Callable[..., Places]], Callable[..., Places]]:
    """The rule of all these operations, whose names have spaces between them."""

    def register(function: Callable[..., Places]) -> Callable[..., Places]:
        for name in names.split():
            RULES[name] = function
        return function

    return register


def tensors_in(given: Any) -> list[Tensor]:
    """Every tensor among the arguments."""
    return [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)]


def place_of(value: Any) -> Place | None:
    """Where the records of an argument are; `None` if it belongs to no record."""
    return value.place if isinstance(value, TracedTensor) else None


def shape_of(value: Tensor) -> torch.Size:
    """As plain numbers."""
    return value.meta.shape if isinstance(value, TracedTensor) else value.shape


def positive_dim(dim: int, dimensions: int) -> int:
    """A dimension counted from the front."""
    return dim % dimensions if dimensions else 0


def record_dims(sizes: Sequence[int], tracer: RecordTracer) -> list[int]:
    """The dimensions whose size is a multiple of the number of records."""
    return [dim for dim, size in enumerate(sizes) if tracer.is_record_multiple(size)]


def broadcast_place(tensors: Sequence[Any], tracer: RecordTracer, name: str) -> Place | None:
    """The place in what tensors are broadcast to."""
    tensors = [tensor for tensor in tensors if isinstance(tensor, Tensor)]
    dimensions = max((len(shape_of(tensor)) for tensor in tensors), default=0)
    found: Place | None = None
    for tensor in tensors:
        place = place_of(tensor)
        if place is None:
            continue
        here = Place(place.dim + dimensions - len(shape_of(tensor)), place.inner)
        if found is None or (found.dim == here.dim and found.inner == ANY):
            found = here
        elif found != here and not (found.dim == here.dim and here.inner == ANY):
            raise RecordsMayMix(name, OTHER_RECORDS)
    if found is None:
        return None
    for tensor in tensors:
        shape = shape_of(tensor)
        dim = found.dim - (dimensions - len(shape))
        if place_of(tensor) is None and dim >= 0 and shape[dim] != 1:
            raise RecordsMayMix(name, CONSTANT_ROWS)
    return found
