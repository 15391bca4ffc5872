"""Rules of operations that change shapes, cut, repeat and put together."""

from __future__ import annotations

import math

from torch import Tensor

from apportion.models.record_tracer import ANY, PICKED, Place, RecordsMayMix, RecordTracer, TracedTensor
from apportion.models.rule_registry import (
    CONSTANT_ROWS,
    Arguments,
    NoRule,
    Places,
    broadcast_place,
    common_place,
    dims_of,
    place_behind,
    place_beside,
    place_of,
    positive_dim,
    record_dims,
    records_in,
    rule,
    shape_of,
)


@rule("view reshape _unsafe_view _reshape_alias")
def _view(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    value: Tensor = given["self"]
    place, old = records_in(value)
    if "size" not in given and "shape" not in given:  # view(dtype)
        if given["dtype"].itemsize != value.dtype.itemsize:
            raise RecordsMayMix(name, "numbers are cut into pieces")
        return place
    new = list(given["size"] if "size" in given else given["shape"])
    if -1 in new:
        known = math.prod(size for size in new if size != -1)
        new[new.index(-1)] = math.prod(old) // max(1, known)
    dims = record_dims(new, tracer)
    if len(dims) != 1:
        raise RecordsMayMix(name, "its new shape has no dimension for the records")
    if place.inner == ANY:
        return Place(dims[0], 1 if new[dims[0]] == tracer.records else ANY)
    behind, after = math.prod(old[place.dim + 1 :]), math.prod(new[dims[0] + 1 :])
    inner, rest = divmod(behind * place.inner, after)
    if rest or inner == 0 or new[dims[0]] % (tracer.records * inner):
        raise RecordsMayMix(name, "it reshapes across records")
    return Place(dims[0], inner)


@rule("permute")
def _permute(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, shape = records_in(given["self"])
    return Place([positive_dim(dim, len(shape)) for dim in given["dims"]].index(place.dim), place.inner)


@rule("transpose t")
def _transpose(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, shape = records_in(given["self"])
    one, other = (positive_dim(given.get(key, index), len(shape)) for index, key in enumerate(("dim0", "dim1")))
    return Place({one: other, other: one}.get(place.dim, place.dim), place.inner)


@rule("expand")
def _expand(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, count = place_of(given["self"]), len(shape_of(given["self"]))
    ahead = len(given["size"]) - count
    dims = record_dims(given["size"], tracer)
    if place is None:
        if dims and dims[0] >= ahead and shape_of(given["self"])[dims[0] - ahead] != 1:
            raise RecordsMayMix(name, CONSTANT_ROWS)
        return Place(dims[0], 1) if dims else None
    if any(dim != place.dim + ahead for dim in dims):
        raise RecordsMayMix(name, "there are as many copies of every record as there are records")
    return Place(place.dim + ahead, place.inner)


@rule("repeat")
def _repeat(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    value, repeats = given["self"], given["repeats"]
    place, ahead = place_of(value), len(given["repeats"]) - len(shape_of(value))
    dims = record_dims(repeats, tracer)
    if place is None:
        own = [1] * ahead + list(shape_of(value))
        if record_dims(own, tracer):
            raise RecordsMayMix(name, CONSTANT_ROWS)
        return Place(dims[0], own[dims[0]])
    if dims:
        raise RecordsMayMix(name, "there are as many copies of every record as there are records")
    return Place(place.dim + ahead, place.inner)


@rule("unsqueeze")
def _unsqueeze(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, shape = records_in(given["self"])
    return place_behind(place, positive_dim(given["dim"], len(shape) + 1))


@rule("squeeze")
def _squeeze(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, shape = records_in(given["self"])
    dims = set() if given.get("dim") == [] else dims_of(given.get("dim"), len(shape))
    if place.dim in dims:
        raise RecordsMayMix(
            name, "it would remove the dimension of the records from a batch of one. Name another: squeeze(dim)"
        )
    return place_beside(place, dims, name, removed=[dim for dim in dims if shape[dim] == 1])


@rule("select")
def _select(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, shape = records_in(given["self"])
    dim = positive_dim(given["dim"], len(shape))
    return PICKED if dim == place.dim else place_beside(place, {dim}, name, removed={dim})


@rule("unbind")
def _unbind(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, shape = records_in(given["self"])
    dims = dims_of(given["dim"], len(shape))
    return place_beside(place, dims, name, removed=dims)


@rule("diagonal")
def _diagonal(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, shape = records_in(given["self"])
    dims = dims_of([given["dim1"], given["dim2"]], len(shape))
    return place_beside(place, dims, name, removed=dims)


@rule("flip roll unfold unfold_backward")
def _move_along(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, shape = records_in(given["grad_in"] if name == "unfold_backward" else given["self"])
    dims = given.get("dims", given.get("dim", given.get("dimension")))
    return place_beside(place, dims_of(dims, len(given.get("input_sizes", shape))), name)


@rule("constant_pad_nd")
def _constant_pad(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, shape = records_in(given["self"])
    return place_beside(place, {len(shape) - 1 - i // 2 for i, added in enumerate(given["pad"]) if added}, name)


def _require_rounds(place: Place, tracer: RecordTracer, name: str, *bounds: int) -> None:
    """Refuse cuts along the records but after rows of all B of them: what is cut out by place belongs to some."""
    if place.inner == ANY or any(bound < 0 or bound % (tracer.records * place.inner) for bound in bounds):
        raise RecordsMayMix(name, "a part of the batch is cut out by its place")


@rule("slice slice_backward")
def _slice(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, shape = records_in(given["self"] if name == "slice" else given["grad_output"])
    if positive_dim(given["dim"], len(shape)) != place.dim:
        if any(tracer.is_record_multiple(given[key]) for key in ("start", "end")):
            raise RecordsMayMix(name, "what is cut out depends on the number of records in the batch")
        return place
    size = given.get("input_sizes", shape)[place.dim]
    start, end = given["start"] or 0, size if given["end"] is None else min(given["end"], size)
    _require_rounds(place, tracer, name, start, end)
    if given["step"] not in (None, 1):
        raise RecordsMayMix(name, "a part of the batch is cut out by its place")
    return place


@rule("split split_with_sizes unsafe_split unsafe_split_with_sizes")
def _split(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, shape = records_in(given["self"])
    if positive_dim(given["dim"], len(shape)) == place.dim:
        sizes = given["split_size"] if "split_size" in given else given["split_sizes"]
        _require_rounds(place, tracer, name, *([sizes] if isinstance(sizes, int) else sizes))
    return place


@rule("select_backward")
def _select_backward(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, _ = records_in(given["grad_output"])
    return place_behind(place, positive_dim(given["dim"], len(given["input_sizes"])))


@rule("diagonal_backward")
def _diagonal_backward(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, shape = records_in(given["grad_output"])
    dims = sorted(dims_of([given["dim1"], given["dim2"]], len(given["input_sizes"])))
    place_beside(place, {len(shape) - 1}, name)
    return place_behind(place_behind(place, dims[0]), dims[1])


@rule("as_strided as_strided_scatter")
def _as_strided(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    """Only where it says again what the tensor is: that happens when a view that was written to is differentiated."""
    value = given["self"].meta if isinstance(given["self"], TracedTensor) else given["self"]
    same = tuple(given["size"]) == tuple(value.shape) and tuple(given["stride"]) == tuple(value.stride())
    if not same or given["storage_offset"] not in (None, value.storage_offset()):
        raise RecordsMayMix(name, "it reads memory past the shapes of tensors")
    if name == "as_strided_scatter" and place_of(given["src"]) != place_of(given["self"]):
        raise RecordsMayMix(name, "records are written to places of other records")
    return place_of(given["self"])


@rule("cat")
def _cat(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    tensors = [tensor for tensor in given["tensors"] if tuple(shape_of(tensor)) != (0,)]
    place = common_place(tensors, name)
    if place.inner == ANY and positive_dim(given["dim"], len(shape_of(tensors[0]))) == place.dim:
        raise RecordsMayMix(name, "records are put behind each other in an unknown order")
    return place


@rule("stack")
def _stack(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place = broadcast_place(given["tensors"], name)
    if place is None:
        raise NoRule
    return place_behind(place, positive_dim(given["dim"], len(shape_of(given["tensors"][0])) + 1))
