"""The table of rules, and what rules have in common.

A rule is handed the arguments by name and answers with the place of each result, or raises `RecordsMayMix`. It answers only if row i of the
result is made of row i of the arguments and of what belongs to no record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
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


def dims_of(wanted: int | Sequence[int] | None, dimensions: int) -> set[int]:
    """The dimensions that an operation is told to work along; all of them if it is told none."""
    named = [wanted] if isinstance(wanted, int) else wanted
    return {positive_dim(dim, dimensions) for dim in named} if named else set(range(dimensions))


def records_in(value: Tensor) -> tuple[Place, torch.Size]:
    """Where the records of an operation's only tensor are, and its shape. What belongs to no record needs no rule."""
    place = place_of(value)
    if place is None:
        raise NoRule
    return place, shape_of(value)


def place_beside(place: Place, dims: Collection[int], name: str, removed: Iterable[int] = ()) -> Place:
    """The place of records beside the dimensions that an operation works along, once those that are `removed` are gone."""
    if place.dim in dims:
        raise RecordsMayMix(name, "it works along the dimension of the records")
    return Place(place.dim - sum(dim < place.dim for dim in removed), place.inner)


def place_behind(place: Place, dim: int) -> Place:
    """The place of records once there is a new dimension `dim`."""
    return Place(place.dim + (dim <= place.dim), place.inner)


def settled_place(places: Iterable[Place | None]) -> Place | None:
    """The first place with an order of the records; the first one if none has."""
    found = [place for place in places if place is not None]
    return next((place for place in found if place.inner != ANY), found[0] if found else None)


def common_place(tensors: Sequence[Tensor], name: str) -> Place:
    """The place of tensors all of which must have the same records, in the same dimension."""
    place = settled_place(map(place_of, tensors))
    if place is None:
        raise NoRule
    if any(
        own is None or own.dim != place.dim or own.inner not in (place.inner, ANY) for own in map(place_of, tensors)
    ):
        raise RecordsMayMix(name, "records of one tensor meet other records of another, or rows that belong to none")
    return place


def require_fitting(value: Tensor, place: Place, dimensions: int, name: str) -> None:
    """Refuse what is broadcast to so many dimensions with records at `place`, but has other records, or a row for each."""
    own, shape = place_of(value), shape_of(value)
    dim = place.dim - (dimensions - len(shape))
    if own is None and dim >= 0 and shape[dim] != 1:
        raise RecordsMayMix(name, CONSTANT_ROWS)
    if own is not None and (own.dim != dim or own.inner not in (place.inner, ANY)):
        raise RecordsMayMix(name, "records of one tensor meet other records of another")


def broadcast_place(values: Sequence[Any], name: str) -> Place | None:
    """The place in what tensors are broadcast to."""
    tensors = tensors_in(values)
    dimensions = max((len(shape_of(tensor)) for tensor in tensors), default=0)
    placed = [(place, len(shape_of(tensor))) for tensor in tensors if (place := place_of(tensor)) is not None]
    found = settled_place(Place(place.dim + dimensions - own, place.inner) for place, own in placed)
    if found is not None:
        for tensor in tensors:
            require_fitting(tensor, found, dimensions, name)
    return found
