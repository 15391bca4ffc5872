"""Rules of operations that change shapes, cut, repeat and put together."""

from __future__ import annotations

import math

from torch import Tensor

from apportion.models.record_tracer import ANY, PICKED, Place, RecordsMayMix, RecordTracer, TracedTensor
from apportion.models.rule_registry import (
    CONSTANT_ROWS,
    Arguments,
    Places,
    broadcast_place,
    place_of,
    positive_dim,
    record_dims,
    rule,
    shape_of,
)


@rule("view reshape _unsafe_view _reshape_alias")
def _view(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    value: Tensor = given["self"]
    place = place_of(value)
    if "size" not in given and "shape" not in given:  # view(dtype)
        if given["dtype"].itemsize != value.dtype.itemsize:
            raise RecordsMayMix(name, "numbers are cut into pieces")
        return place
    if place is None:
        return None
    old, new = list(shape_of(value)), list(given["size"] if "size" in given else given["shape"])
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
    place, count = place_of(given["self"]), len(shape_of(given["self"]))
    if place is None:
        return None
    return Place([positive_dim(dim, count) for dim in given["dims"]].index(place.dim), place.inner)


@rule("transpose t")
def _transpose(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, count = place_of(given["self"]), len(shape_of(given["self"]))
    if place is None or count < 2:
        return place
    one, other = (positive_dim(given.get(key, index), count) for index, key in enumerate(("dim0", "dim1")))
    return Place({one: other, other: one}.get(place.dim, place.dim), place.inner)


@rule("expand")
def _expand(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, count = place_of(given["self"]), len(shape_of(given["self"]))
    ahead = len(given["size"]) - count
    if place is None:
        dims = record_dims(given["size"], tracer)
        if dims and dims[0] >= ahead and shape_of(given["self"])[dims[0] - ahead] != 1:
            raise RecordsMayMix(name, CONSTANT_ROWS)
        return Place(dims[0], 1) if dims else None
    if len([dim for dim in record_dims(given["size"], tracer) if dim != place.dim + ahead]):
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
    place = place_of(given["self"])
    if place is None:
        return None
    dim = positive_dim(given["dim"], len(shape_of(given["self"])) + 1)
    return Place(place.dim + (dim <= place.dim), place.inner)


@rule("squeeze")
def _squeeze(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    value = given["self"]
    place, shape = place_of(value), shape_of(value)
    if "dim" not in given:
        raise RecordsMayMix(
            name, "without a dimension it would remove that of the records from a batch of one. Name it: squeeze(dim)"
        )
    wanted = given["dim"] if isinstance(given["dim"], (list, tuple)) else [given["dim"]]
    dims = {positive_dim(dim, len(shape)) for dim in wanted}
    if place is None:
        return None
    if place.dim in dims:
        raise RecordsMayMix(name, "it would remove the dimension of the records from a batch of one")
    gone = sum(1 for dim in dims if dim < place.dim and shape[dim] == 1)
    return Place(place.dim - gone, place.inner)


@rule("select")
def _select(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, dim = place_of(given["self"]), positive_dim(given["dim"], len(shape_of(given["self"])))
    if place is None:
        return None
    if dim == place.dim:
        return PICKED
    return Place(place.dim - (dim < place.dim), place.inner)


@rule("slice")
def _slice(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    value = given["self"]
    place, shape = place_of(value), shape_of(value)
    if place is None:
        return None
    dim = positive_dim(given["dim"], len(shape))
    if dim != place.dim:
        if any(tracer.is_record_multiple(given[key]) for key in ("start", "end")):
            raise RecordsMayMix(name, "what is cut out depends on the number of records in the batch")
        return place
    start, end, step = given["start"] or 0, given["end"], given["step"] or 1
    size, block = shape[dim], tracer.records * place.inner
    end = size if end is None or end > size else end
    if start < 0 or end < 0 or step != 1 or place.inner == ANY or start % block or end % block:
        raise RecordsMayMix(name, "a part of the batch is cut out by its place")
    return place


@rule("split split_with_sizes chunk unsafe_split unsafe_split_with_sizes unsafe_chunk")
def _split(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    value = given["self"]
    place, shape = place_of(value), shape_of(value)
    if place is None:
        return None
    dim = positive_dim(given["dim"], len(shape))
    sizes = given.get("split_size", given.get("split_sizes"))
    sizes = [sizes] if isinstance(sizes, int) else sizes
    if dim == place.dim and (
        place.inner == ANY or sizes is None or any(size % (tracer.records * place.inner) for size in sizes)
    ):
        raise RecordsMayMix(name, "the batch is cut into parts by place")
    return place


@rule("unbind")
def _unbind(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place = _select(given, tracer, name)
    if place == PICKED:
        raise RecordsMayMix(name, "the batch is taken apart, record by record")
    return place


@rule("diagonal")
def _diagonal(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, count = place_of(given["self"]), len(shape_of(given["self"]))
    dims = {positive_dim(given["dim1"], count), positive_dim(given["dim2"], count)}
    if place is None:
        return None
    if place.dim in dims:
        raise RecordsMayMix(name, "it pairs records with places")
    return Place(place.dim - sum(dim < place.dim for dim in dims), place.inner)


@rule("unfold")
def _unfold(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place = place_of(given["self"])
    if place is not None and positive_dim(given["dimension"], len(shape_of(given["self"]))) == place.dim:
        raise RecordsMayMix(name, "its windows hold several records")
    return place


@rule("unfold_backward")
def _unfold_backward(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place = place_of(given["grad_in"])
    if place is not None and positive_dim(given["dim"], len(given["input_sizes"])) == place.dim:
        raise RecordsMayMix(name, "its windows hold several records")
    return place


@rule("flip roll")
def _flip(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, count = place_of(given["self"]), len(shape_of(given["self"]))
    if place is not None and (not given["dims"] or place.dim in {positive_dim(dim, count) for dim in given["dims"]}):
        raise RecordsMayMix(name, "it moves records to places of others")
    return place


@rule("slice_backward select_backward")
def _slice_backward(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, dim = place_of(given["grad_output"]), positive_dim(given["dim"], len(given["input_sizes"]))
    if place is None:
        return None
    if name == "select_backward":
        place = Place(place.dim + (dim <= place.dim), place.inner)
    if name == "slice_backward" and dim != place.dim:
        if any(tracer.is_record_multiple(given[key]) for key in ("start", "end")):
            raise RecordsMayMix(name, "what is put back depends on the number of records in the batch")
        return place
    if dim == place.dim and (
        place.inner == ANY
        or given["start"] % (tracer.records * place.inner)
        or given["start"] < 0
        or given["step"] != 1
    ):
        raise RecordsMayMix(name, "a part of the batch is put back by its place")
    return place


@rule("diagonal_backward")
def _diagonal_backward(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, count = place_of(given["grad_output"]), len(given["input_sizes"])
    if place is None:
        return None
    dims = sorted(positive_dim(given[key], count) for key in ("dim1", "dim2"))
    left = [dim for dim in range(count) if dim not in dims]
    if place.dim >= len(left):
        raise RecordsMayMix(name, "it pairs records with places")
    return Place(left[place.dim], place.inner)


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
    found = {place for tensor in tensors if (place := place_of(tensor)) is not None and place.inner != ANY}
    loose = [place for tensor in tensors if (place := place_of(tensor)) is not None and place.inner == ANY]
    if not found and loose:
        found = set(loose)
    if not found:
        return None
    place = next(iter(found))
    if len(found) > 1 or any(one.dim != place.dim for one in loose):
        raise RecordsMayMix(name, "records of one tensor are put beside other records of another")
    dim = positive_dim(given["dim"], len(shape_of(tensors[0])))
    if any(place_of(tensor) is None for tensor in tensors):
        raise RecordsMayMix(
            name, "a constant with a row for each record, or rows that belong to none, are put beside records"
        )
    if dim == place.dim and place.inner == ANY:
        raise RecordsMayMix(name, "records are put behind each other in an unknown order")
    return place


@rule("stack")
def _stack(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    tensors = given["tensors"]
    count = len(shape_of(tensors[0])) + 1
    place = broadcast_place(tensors, tracer, name)
    if place is None:
        return None
    dim = positive_dim(given["dim"], count)
    return Place(place.dim + (dim <= place.dim), place.inner)


@rule("constant_pad_nd")
def _constant_pad(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, count = place_of(given["self"]), len(shape_of(given["self"]))
    padding = given["pad"]
    if place is not None and any(padding[2 * (count - 1 - place.dim) : 2 * (count - place.dim)]):
        raise RecordsMayMix(name, "rows that belong to no record are put beside records")
    return place
