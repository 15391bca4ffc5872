"""Rules of operations that read or write by index."""

from __future__ import annotations

import torch
from torch import Tensor

from apportion.models.record_tracer import Place, RecordsMayMix, RecordTracer, TracedTensor
from apportion.models.rule_registry import (
    NUMBER_COUNTS,
    Arguments,
    Places,
    broadcast_place,
    common_place,
    place_of,
    positive_dim,
    require_fitting,
    rule,
    shape_of,
)


@rule("embedding")
def _embedding(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    if place_of(given["weight"]) is not None:
        raise RecordsMayMix(
            name,
            "a table for each record is read by index: torch's batching rule for it is wrong where there is padding",
        )
    return place_of(given["indices"])


@rule("gather scatter scatter_add scatter_reduce")
def _gather(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    tensors = [given["self"], given["index"], *([given["src"]] if isinstance(given.get("src"), Tensor) else [])]
    place = common_place(tensors, name)
    if positive_dim(given["dim"], len(shape_of(given["index"]))) == place.dim:
        raise RecordsMayMix(name, "it picks records by index")
    if len({shape_of(tensor)[place.dim] for tensor in tensors}) != 1:
        raise RecordsMayMix(name, "it picks from a part of the records")
    return place


@rule("index_select index_add index_copy index_fill")
def _index_select(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    value, dim = given["self"], positive_dim(given["dim"], len(shape_of(given["self"])))
    place = place_of(value)
    if place_of(given["index"]) is not None:
        if place is None and name == "index_select" and dim == 0 and len(shape_of(given["index"])) == 1:
            return place_of(given["index"])  # rows of a table for each record
        raise RecordsMayMix(name, "it picks by an index that belongs to records")
    if place is not None and dim == place.dim:
        raise RecordsMayMix(name, "it picks records by index")
    if isinstance(given.get("source"), Tensor) and place_of(given["source"]) != place:
        raise RecordsMayMix(name, "records are written to places of other records")
    return place


@rule("index _unsafe_index")
def _index(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    """The place in x[i, j, …]."""
    value, indices = given["self"], given["indices"]
    place = place_of(value)
    if any(isinstance(one, TracedTensor) and one.numbers for one in (value, given.get("values"))):
        raise RecordsMayMix(name, NUMBER_COUNTS)
    used = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if any(index.dtype in (torch.bool, torch.uint8) for _, index in used):
        raise RecordsMayMix(name, "a mask picks a number of entries that depends on values")
    spread = max((len(shape_of(index)) for _, index in used), default=0)
    numbered = [(dim, index) for dim, index in used if isinstance(index, TracedTensor) and index.numbers]
    within = broadcast_place([index for dim, index in used if dim not in dict(numbered)], name)
    adjacent = [dim for dim, _ in used] == list(range(used[0][0], used[0][0] + len(used))) if used else True
    start = used[0][0] if adjacent and used else 0
    if place is not None and any(dim == place.dim for dim, _ in used):
        # x[arange(B), i]: row i for record i
        ok = len(numbered) == 1 and numbered[0][0] == place.dim and place == Place(place.dim, 1)
        if not ok or shape_of(value)[place.dim] != tracer.records:
            raise RecordsMayMix(name, "it picks records by index")
        own = numbered[0][1].place
        assert own is not None
        here = Place(own.dim + spread - len(shape_of(numbered[0][1])), 1)
        for _, index in used:
            require_fitting(index, here, spread, name)
        return Place(start + here.dim, 1)
    if numbered:
        raise RecordsMayMix(name, NUMBER_COUNTS)
    if place is None:
        return None if within is None else Place(start + within.dim, within.inner)
    if within is not None:
        raise RecordsMayMix(
            name, "it picks by an index that belongs to records from what has records in another dimension"
        )
    kept = [dim for dim in range(len(shape_of(value))) if dim not in {dim for dim, _ in used}]
    at = kept.index(place.dim)
    before = sum(1 for dim in kept if dim < start)
    return Place(at if at < before else at + spread, place.inner)


@rule("index_put _unsafe_index_put")
def _index_put(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    value, indices, values = given["self"], given["indices"], given["values"]
    place = place_of(value)
    masks = [index for index in indices if index is not None and index.dtype in (torch.bool, torch.uint8)]
    if masks:
        # x[mask] = number
        if len(indices) != 1 or len(shape_of(values)) or place_of(values) is not None or place is None:
            raise RecordsMayMix(name, "a mask picks a number of entries that depends on values")
        if place_of(masks[0]) != (place if place.dim < len(shape_of(masks[0])) else None):
            raise RecordsMayMix(name, "a mask of other records")
        return place
    found = _index(given, tracer, name)
    if place is None:
        raise RecordsMayMix(name, "what is computed from records is written by index into what belongs to none")
    target = (
        len(shape_of(value))
        - sum(index is not None for index in indices)
        + max((len(shape_of(index)) for index in indices if index is not None), default=0)
    )
    assert found is not None
    require_fitting(values, found, target, name)
    return place
