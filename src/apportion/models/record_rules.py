"""Where the records of a result are: one rule for each family of torch's operations.

A rule is handed the arguments by name and answers with the place of each result, or raises `RecordsMayMix`. It answers only if row i of the
result is made of row i of the arguments and of what belongs to no record. An operation without a rule is taken apart by torch's own
decompositions; where there is none it is refused.

In-place operations have the rule of their ordinary twin, and must leave the records of what they write to where they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from apportion.models.record_tracer import (
    ANY,
    FRONT,
    PICKED,
    Place,
    RecordsMayMix,
    RecordTracer,
    TracedTensor,
    iterate_sizes,
    written_arguments,
)

Arguments = dict[str, Any]
Places = Any
"""A place, `None`, or a list of these for several results."""

_CONSTANT_ROWS = "a constant has a row for each record, so that a record's place in the batch counts"
_NUMBER_COUNTS = "the number of a record in its batch is computed with, so that its place in the batch counts"
_OTHER_RECORDS = "records of one tensor meet other records of another"

_RULES: dict[str, Callable[[Arguments, RecordTracer, str], Places]] = {}


class _NoRule(Exception):
    """There is a rule, but not for these arguments: look for a decomposition."""


def rule(names: str) -> Callable[[Callable[..., Places]], Callable[..., Places]]:
    """The rule of all these operations, whose names have spaces between them."""

    def register(function: Callable[..., Places]) -> Callable[..., Places]:
        for name in names.split():
            _RULES[name] = function
        return function

    return register


def apply_rule(operation: Any, args: Any, kwargs: Any, tracer: RecordTracer) -> Any:
    """Run an operation on traced tensors: results with their places, or `RecordsMayMix`. `NotImplemented` if no record is in it."""
    traced = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, TracedTensor)]
    name = operation.overloadpacket._qualified_op_name.removeprefix("aten::")
    if name in _FACTORY_OPERATIONS or name in _RANDOM_OPERATIONS:
        _require_no_count(operation, args, kwargs, tracer, name, but=_SHAPE_ARGUMENTS)
        return _apply_factory(operation, name, args, kwargs, tracer)
    expands = name in ("expand", "repeat") and bool(_record_dims(args[1], tracer))
    if not traced:
        return _apply_to_constants(operation, name, args, kwargs, tracer, expands=expands)
    if name in ("prim::device", "prim::layout", "_fused_sdp_choice", "is_same_size", "sym_size", "sym_stride"):
        return tracer.result_shapes(operation, args, kwargs)
    if name == "_linalg_check_errors":
        return None  # raises for a matrix that has no inverse, and nothing else
    if name in ("_local_scalar_dense", "is_nonzero", "equal", "item"):
        raise RecordsMayMix(name, "a value is looked at that comes from records, weights or chance")
    if any(one.place == PICKED for one in traced):
        raise RecordsMayMix(name, "one record is picked out of the batch by its place")
    if all(one.place is None for one in traced) and not expands:
        _require_no_count(operation, args, kwargs, tracer, name)
        return _apply_to_no_record(operation, args, kwargs, tracer)
    _require_no_count(operation, args, kwargs, tracer, name, but=_SHAPE_ARGUMENTS)
    if any(one.numbers for one in traced) and name not in _KEEP_NUMBERS:
        raise RecordsMayMix(name, _NUMBER_COUNTS)
    return _apply_to_records(operation, name, args, kwargs, tracer, traced)


def _apply_to_constants(
    operation: Any, name: str, args: Any, kwargs: Any, tracer: RecordTracer, *, expands: bool
) -> Any:
    """An operation on what has values, and belongs to no record."""
    if expands:
        return _apply_expansion(operation, args, kwargs, tracer)
    if name == "arange" and (made := _record_numbers(operation, args, kwargs, tracer)) is not None:
        return made
    _require_no_count(operation, args, kwargs, tracer, name)
    if torch.Tag.nondeterministic_seeded in operation.tags:
        # nobody may look at it: it would decide otherwise the next time
        return _apply_to_no_record(operation, args, kwargs, tracer)
    return NotImplemented


def _apply_to_records(
    operation: Any, name: str, args: Any, kwargs: Any, tracer: RecordTracer, traced: list[TracedTensor]
) -> Any:
    """An operation on records, by its rule or by what torch makes it of."""
    written = written_arguments(operation, args, kwargs)
    if any(not isinstance(target, TracedTensor) for target in written):
        raise RecordsMayMix(name, "what is computed from records is written into a tensor that outlives them")
    try:
        found = _find_places(name, operation, _bind_arguments(operation, args, kwargs), tracer)
    except _NoRule:
        if written:
            raise RecordsMayMix(name, "it is not known that this operation keeps records apart") from None
        return _decompose(name, operation, args, kwargs, tracer)
    if torch.Tag.inplace_view in operation.tags:
        return tracer.reshape_in_place(operation, args, kwargs, written[0], found)
    for target in written:
        if found != target.place or (target.place.inner != ANY and tracer.has_unknown_order(target)):
            raise RecordsMayMix(name, "records are written to places of other records")
    numbers = _keeps_numbers(name, traced)
    return _wrap_results(tracer, tracer.result_shapes(operation, args, kwargs), found, written, operation, numbers)


def _apply_to_no_record(operation: Any, args: Any, kwargs: Any, tracer: RecordTracer) -> Any:
    """Weights and random numbers belong to no record, whatever is done to them; but they move, so that nobody may look at them."""
    written = written_arguments(operation, args, kwargs)
    if any(not isinstance(target, TracedTensor) for target in written):
        raise RecordsMayMix(
            str(operation), "weights or random numbers are written into a tensor that outlives the forward pass"
        )
    if torch.Tag.inplace_view in operation.tags:
        return tracer.reshape_in_place(operation, args, kwargs, written[0], None)
    return _wrap_results(tracer, tracer.result_shapes(operation, args, kwargs), None, written, operation)


def _decompose(name: str, operation: Any, args: Any, kwargs: Any, tracer: RecordTracer) -> Any:
    """Trace the operations that torch itself decomposes this one into."""
    found = tracer.decompose(operation, args, kwargs)
    if found is NotImplemented:
        raise RecordsMayMix(name, "it is not known that this operation keeps records apart") from None
    return found


def _find_places(name: str, operation: Any, given: Arguments, tracer: RecordTracer) -> Places:
    ordinary = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    found = _RULES.get(ordinary)
    if found is not None:
        return found(given, tracer, ordinary)
    if torch.Tag.pointwise in operation.tags:
        return _pointwise(given, tracer, ordinary)
    raise _NoRule


def _bind_arguments(operation: Any, args: Any, kwargs: Any) -> Arguments:
    return {
        argument.name: args[index] if index < len(args) else kwargs.get(argument.name, argument.default_value)
        for index, argument in enumerate(operation._schema.arguments)
    }


def _wrap_results(
    tracer: RecordTracer, metas: Any, found: Places, written: list[Any], operation: Any, numbers: bool = False
) -> Any:
    """The results with their places; an operation that writes returns what it wrote to."""
    results = operation._schema.returns
    if written and len(written) == len(results):
        return written[0] if len(written) == 1 else tuple(written)
    if isinstance(metas, Tensor):
        _require_one_dimension(operation, metas, found, tracer)
        return tracer.wrap(metas, found, numbers=numbers)
    if not isinstance(metas, (tuple, list)):
        return metas
    each = found if isinstance(found, list) else [found] * len(metas)
    for meta, place in zip(metas, each, strict=True):
        if isinstance(meta, Tensor):
            _require_one_dimension(operation, meta, place, tracer)
    return type(metas)(
        tracer.wrap(meta, place) if isinstance(meta, Tensor) else meta for meta, place in zip(metas, each, strict=True)
    )


_SHAPE_ARGUMENTS = frozenset(
    ("size", "shape", "sizes", "input_sizes", "self_sizes", "input_size", "repeats", "N", "groups", "bias_sizes")
)
"""Arguments that may grow in proportion to the number of records: the rules look at them, or at the shape that comes of them."""
_CUT_ARGUMENTS = {
    name: frozenset(arguments)
    for names, arguments in (
        (("slice", "slice_backward", "slice_scatter"), ("start", "end")),
        (("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes"), ("split_size", "split_sizes")),
        (
            ("as_strided", "as_strided_", "as_strided_scatter", "empty_strided", "new_empty_strided", "_reshape_alias"),
            ("stride",),
        ),
    )
    for name in names
}
"""Such arguments of operations whose rules look at them."""


def _require_no_count(
    operation: Any, args: Any, kwargs: Any, tracer: RecordTracer, name: str, but: frozenset[str] = frozenset()
) -> None:
    """Refuse an argument that is a multiple of the number of records, on which the values of the result may then depend."""
    allowed = but | _CUT_ARGUMENTS.get(name, frozenset()) if but else but
    for argument, size in iterate_sizes(operation, args, kwargs):
        if argument not in allowed and tracer.is_record_multiple(size):
            raise RecordsMayMix(name, "what is computed depends on the number of records in the batch")


def _require_one_dimension(operation: Any, meta: Tensor, place: Place | None, tracer: RecordTracer) -> None:
    """Refuse a result with as many entries as records beside the dimension of the records: a sum over them would count the records."""
    if any(place is None or dim != place.dim for dim in _record_dims(meta.shape, tracer)):
        name = operation.overloadpacket.__name__
        raise RecordsMayMix(name, "a dimension is as long as there are records and does not belong to them")


def _tensors(given: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)]


def _place(value: Any) -> Place | None:
    return value.place if isinstance(value, TracedTensor) else None


def _shape(value: Tensor) -> torch.Size:
    return value.meta.shape if isinstance(value, TracedTensor) else value.shape


def _positive_dim(dim: int, dimensions: int) -> int:
    return dim % dimensions if dimensions else 0


# --- what is made without arguments of records ------------------------------------------------------------------------------------------

_FACTORY_OPERATIONS = frozenset(
    f"{prefix}{name}{suffix}"
    for name in ("zeros", "ones", "full", "empty")
    for prefix, suffix in (("", ""), ("new_", ""), ("", "_like"))
) | {"empty_strided", "new_empty_strided", "scalar_tensor"}
_RANDOM_OPERATIONS = frozenset(
    {"rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "normal", "bernoulli", "poisson"}
)
_NUMBER_OPERATIONS = (
    "view reshape _unsafe_view _reshape_alias expand unsqueeze squeeze permute transpose t detach alias clone "
    "_to_copy lift_fresh slice index index_put index_put_ _unsafe_index _unsafe_index_put"
)
_KEEP_NUMBERS = frozenset(_NUMBER_OPERATIONS.split())
"""Operations after which row i still holds the number i, or which use it to pick rows."""


def _record_dims(sizes: Sequence[int], tracer: RecordTracer) -> list[int]:
    return [dim for dim, size in enumerate(sizes) if tracer.is_record_multiple(size)]


def _apply_factory(operation: Any, name: str, args: Any, kwargs: Any, tracer: RecordTracer) -> Any:
    """The same number everywhere, or independent random numbers: every dimension with a size of B can be that of the records."""
    like = next((leaf for leaf in tree_leaves(args) if isinstance(leaf, TracedTensor)), None)
    meta = tracer.result_shapes(operation, args, kwargs)
    if like is not None and (name.endswith("_like") or name in _RANDOM_OPERATIONS):
        place = _broadcast_place(_tensors((args, kwargs)), tracer, name)
        _require_one_dimension(operation, meta, place, tracer)
        return tracer.wrap(meta, place)
    dims = _record_dims(meta.shape, tracer)
    if len(dims) > 1:
        raise RecordsMayMix(name, "there are as many entries as records in two dimensions")
    if len(dims) == 1:
        return tracer.wrap(meta, Place(dims[0], 1 if meta.shape[dims[0]] == tracer.records else ANY))
    if like is None and name not in _RANDOM_OPERATIONS:
        return NotImplemented
    return tracer.wrap(meta, None)  # nobody may look at chance: it would decide otherwise the next time


def _apply_expansion(operation: Any, args: Any, kwargs: Any, tracer: RecordTracer) -> Any:
    """One value for all records, B times."""
    value, sizes = args[0], args[1]
    meta = tracer.result_shapes(operation, args, kwargs)
    dims = _record_dims(meta.shape, tracer)
    ahead = len(sizes) - value.dim()
    name = operation.overloadpacket.__name__
    if len(dims) != 1:
        raise RecordsMayMix(name, "there are as many copies as records in two dimensions")
    own = value.shape[dims[0] - ahead] if dims[0] >= ahead else 1
    if own % tracer.records == 0 or (name == "expand" and own != 1):
        raise RecordsMayMix(name, _CONSTANT_ROWS)
    return tracer.wrap(meta, Place(dims[0], own))


def _record_numbers(operation: Any, args: Any, kwargs: Any, tracer: RecordTracer) -> Any:
    """0 … B−1."""
    given = _bind_arguments(operation, args, kwargs)
    if given["end"] != tracer.records or given.get("start", 0) != 0 or given.get("step", 1) != 1:
        return None
    return tracer.wrap(tracer.result_shapes(operation, args, kwargs), FRONT, numbers=True)


def _keeps_numbers(name: str, traced: list[TracedTensor]) -> bool:
    return (
        name in _KEEP_NUMBERS and not name.startswith(("index", "_unsafe_index")) and all(one.numbers for one in traced)
    )


# --- element by element -----------------------------------------------------------------------------------------------------------------


def _broadcast_place(tensors: Sequence[Any], tracer: RecordTracer, name: str) -> Place | None:
    """The place in what tensors are broadcast to."""
    tensors = [tensor for tensor in tensors if isinstance(tensor, Tensor)]
    dimensions = max((len(_shape(tensor)) for tensor in tensors), default=0)
    found: Place | None = None
    for tensor in tensors:
        place = _place(tensor)
        if place is None:
            continue
        here = Place(place.dim + dimensions - len(_shape(tensor)), place.inner)
        if found is None or (found.dim == here.dim and found.inner == ANY):
            found = here
        elif found != here and not (found.dim == here.dim and here.inner == ANY):
            raise RecordsMayMix(name, _OTHER_RECORDS)
    if found is None:
        return None
    for tensor in tensors:
        shape = _shape(tensor)
        dim = found.dim - (dimensions - len(shape))
        if _place(tensor) is None and dim >= 0 and shape[dim] != 1:
            raise RecordsMayMix(name, _CONSTANT_ROWS)
    return found


@rule(
    "where masked_fill lerp addcmul addcdiv copy clamp threshold_backward native_dropout_backward gelu_backward "
    "_prelu_kernel _prelu_kernel_backward dropout rrelu_with_noise fmod remainder heaviside sigmoid_backward "
    "tanh_backward hardtanh_backward leaky_relu_backward softplus_backward elu_backward silu_backward "
    "mish_backward hardswish_backward hardsigmoid_backward log_sigmoid_backward huber _masked_scale polar complex "
    "nextafter softshrink_backward hardshrink_backward logit_backward"
)
def _pointwise(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    return _broadcast_place(_tensors(given), tracer, name)


@rule("native_dropout")
def _dropout(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    return [_place(given["input"])] * 2


@rule("log_sigmoid_forward")
def _log_sigmoid(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    return [_place(given["self"]), None if not _tensors(given) else _place(given["self"])]


@rule(
    "mse_loss binary_cross_entropy smooth_l1_loss huber_loss soft_margin_loss mse_loss_backward "
    "binary_cross_entropy_backward smooth_l1_loss_backward huber_loss_backward"
)
def _loss(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    if given["reduction"] != 0:
        raise RecordsMayMix(name, "it takes a mean or a sum over the records")
    return _broadcast_place(_tensors(given), tracer, name)


@rule(
    "clone detach alias _to_copy contiguous lift lift_fresh lift_fresh_copy fill zero _conj bernoulli normal "
    "uniform exponential log_normal cauchy geometric random nan_to_num _neg_view resolve_conj resolve_neg real "
    "imag set_requires_grad _efficientzerotensor"
)
def _elementwise_copy(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    return _broadcast_place(_tensors(given), tracer, name)


@rule("triu tril")
def _triangle(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place = _place(given["self"])
    if place is not None and place.dim >= len(_shape(given["self"])) - 2:
        raise RecordsMayMix(name, "it treats records differently by their place")
    return place


@rule("view_as_real view_as_complex")
def _complex_view(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place = _place(given["self"])
    if name == "view_as_complex" and place is not None and place.dim == len(_shape(given["self"])) - 1:
        raise RecordsMayMix(name, "records are taken for real and imaginary parts")
    return place


# --- shapes -----------------------------------------------------------------------------------------------------------------------------


@rule("view reshape _unsafe_view _reshape_alias")
def _view(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    value: Tensor = given["self"]
    place = _place(value)
    if "size" not in given and "shape" not in given:  # view(dtype)
        if given["dtype"].itemsize != value.dtype.itemsize:
            raise RecordsMayMix(name, "numbers are cut into pieces")
        return place
    if place is None:
        return None
    old, new = list(_shape(value)), list(given["size"] if "size" in given else given["shape"])
    if -1 in new:
        known = math.prod(size for size in new if size != -1)
        new[new.index(-1)] = math.prod(old) // max(1, known)
    dims = _record_dims(new, tracer)
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
    place, count = _place(given["self"]), len(_shape(given["self"]))
    if place is None:
        return None
    return Place([_positive_dim(dim, count) for dim in given["dims"]].index(place.dim), place.inner)


@rule("transpose t")
def _transpose(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, count = _place(given["self"]), len(_shape(given["self"]))
    if place is None or count < 2:
        return place
    one, other = (_positive_dim(given.get(key, index), count) for index, key in enumerate(("dim0", "dim1")))
    return Place({one: other, other: one}.get(place.dim, place.dim), place.inner)


@rule("expand")
def _expand(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, count = _place(given["self"]), len(_shape(given["self"]))
    ahead = len(given["size"]) - count
    if place is None:
        dims = _record_dims(given["size"], tracer)
        if dims and dims[0] >= ahead and _shape(given["self"])[dims[0] - ahead] != 1:
            raise RecordsMayMix(name, _CONSTANT_ROWS)
        return Place(dims[0], 1) if dims else None
    if len([dim for dim in _record_dims(given["size"], tracer) if dim != place.dim + ahead]):
        raise RecordsMayMix(name, "there are as many copies of every record as there are records")
    return Place(place.dim + ahead, place.inner)


@rule("repeat")
def _repeat(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    value, repeats = given["self"], given["repeats"]
    place, ahead = _place(value), len(given["repeats"]) - len(_shape(value))
    dims = _record_dims(repeats, tracer)
    if place is None:
        own = [1] * ahead + list(_shape(value))
        if _record_dims(own, tracer):
            raise RecordsMayMix(name, _CONSTANT_ROWS)
        return Place(dims[0], own[dims[0]])
    if dims:
        raise RecordsMayMix(name, "there are as many copies of every record as there are records")
    return Place(place.dim + ahead, place.inner)


@rule("unsqueeze")
def _unsqueeze(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place = _place(given["self"])
    if place is None:
        return None
    dim = _positive_dim(given["dim"], len(_shape(given["self"])) + 1)
    return Place(place.dim + (dim <= place.dim), place.inner)


@rule("squeeze")
def _squeeze(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    value = given["self"]
    place, shape = _place(value), _shape(value)
    if "dim" not in given:
        raise RecordsMayMix(
            name, "without a dimension it would remove that of the records from a batch of one. Name it: squeeze(dim)"
        )
    wanted = given["dim"] if isinstance(given["dim"], (list, tuple)) else [given["dim"]]
    dims = {_positive_dim(dim, len(shape)) for dim in wanted}
    if place is None:
        return None
    if place.dim in dims:
        raise RecordsMayMix(name, "it would remove the dimension of the records from a batch of one")
    gone = sum(1 for dim in dims if dim < place.dim and shape[dim] == 1)
    return Place(place.dim - gone, place.inner)


@rule("select")
def _select(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, dim = _place(given["self"]), _positive_dim(given["dim"], len(_shape(given["self"])))
    if place is None:
        return None
    if dim == place.dim:
        return PICKED
    return Place(place.dim - (dim < place.dim), place.inner)


@rule("slice")
def _slice(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    value = given["self"]
    place, shape = _place(value), _shape(value)
    if place is None:
        return None
    dim = _positive_dim(given["dim"], len(shape))
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
    place, shape = _place(value), _shape(value)
    if place is None:
        return None
    dim = _positive_dim(given["dim"], len(shape))
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
    place, count = _place(given["self"]), len(_shape(given["self"]))
    dims = {_positive_dim(given["dim1"], count), _positive_dim(given["dim2"], count)}
    if place is None:
        return None
    if place.dim in dims:
        raise RecordsMayMix(name, "it pairs records with places")
    return Place(place.dim - sum(dim < place.dim for dim in dims), place.inner)


@rule("unfold")
def _unfold(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place = _place(given["self"])
    if place is not None and _positive_dim(given["dimension"], len(_shape(given["self"]))) == place.dim:
        raise RecordsMayMix(name, "its windows hold several records")
    return place


@rule("unfold_backward")
def _unfold_backward(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place = _place(given["grad_in"])
    if place is not None and _positive_dim(given["dim"], len(given["input_sizes"])) == place.dim:
        raise RecordsMayMix(name, "its windows hold several records")
    return place


@rule("flip roll")
def _flip(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, count = _place(given["self"]), len(_shape(given["self"]))
    if place is not None and (not given["dims"] or place.dim in {_positive_dim(dim, count) for dim in given["dims"]}):
        raise RecordsMayMix(name, "it moves records to places of others")
    return place


@rule("slice_backward select_backward")
def _slice_backward(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, dim = _place(given["grad_output"]), _positive_dim(given["dim"], len(given["input_sizes"]))
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
    place, count = _place(given["grad_output"]), len(given["input_sizes"])
    if place is None:
        return None
    dims = sorted(_positive_dim(given[key], count) for key in ("dim1", "dim2"))
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
    if name == "as_strided_scatter" and _place(given["src"]) != _place(given["self"]):
        raise RecordsMayMix(name, "records are written to places of other records")
    return _place(given["self"])


@rule("cat")
def _cat(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    tensors = [tensor for tensor in given["tensors"] if tuple(_shape(tensor)) != (0,)]
    found = {place for tensor in tensors if (place := _place(tensor)) is not None and place.inner != ANY}
    loose = [place for tensor in tensors if (place := _place(tensor)) is not None and place.inner == ANY]
    if not found and loose:
        found = set(loose)
    if not found:
        return None
    place = next(iter(found))
    if len(found) > 1 or any(one.dim != place.dim for one in loose):
        raise RecordsMayMix(name, "records of one tensor are put beside other records of another")
    dim = _positive_dim(given["dim"], len(_shape(tensors[0])))
    if any(_place(tensor) is None for tensor in tensors):
        raise RecordsMayMix(
            name, "a constant with a row for each record, or rows that belong to none, are put beside records"
        )
    if dim == place.dim and place.inner == ANY:
        raise RecordsMayMix(name, "records are put behind each other in an unknown order")
    return place


@rule("stack")
def _stack(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    tensors = given["tensors"]
    count = len(_shape(tensors[0])) + 1
    place = _broadcast_place(tensors, tracer, name)
    if place is None:
        return None
    dim = _positive_dim(given["dim"], count)
    return Place(place.dim + (dim <= place.dim), place.inner)


@rule("constant_pad_nd")
def _constant_pad(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, count = _place(given["self"]), len(_shape(given["self"]))
    padding = given["pad"]
    if place is not None and any(padding[2 * (count - 1 - place.dim) : 2 * (count - place.dim)]):
        raise RecordsMayMix(name, "rows that belong to no record are put beside records")
    return place


# --- along a dimension ------------------------------------------------------------------------------------------------------------------


@rule(
    "sum mean amax amin prod any all logsumexp var std nansum norm linalg_vector_norm argmax argmin count_nonzero "
    "var_mean std_mean max min median nanmedian mode kthvalue aminmax"
)
def _reduction(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    value = given["self"]
    place, count = _place(value), len(_shape(value))
    if place is None:
        return None
    if isinstance(given.get("other"), Tensor):  # max(x, y)
        return _broadcast_place(_tensors(given), tracer, name)
    wanted = given.get("dim")
    wanted = [wanted] if isinstance(wanted, int) else wanted
    dims = {_positive_dim(dim, count) for dim in wanted} if wanted else set(range(count))
    if place.dim in dims:
        raise RecordsMayMix(name, "it is taken over the records")
    return place if given.get("keepdim") else Place(place.dim - sum(dim < place.dim for dim in dims), place.inner)


@rule(
    "_softmax _log_softmax cumsum cumprod logcumsumexp cummax cummin _cummax_helper sort argsort topk "
    "_softmax_backward_data _log_softmax_backward_data _safe_softmax"
)
def _along_dimension(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    value = given.get("self", given.get("grad_output"))
    assert isinstance(value, Tensor)
    place = _broadcast_place(_tensors(given), tracer, name)
    dim = given.get("dim")
    if place is not None and _positive_dim(-1 if dim is None else dim, len(_shape(value))) == place.dim:
        raise RecordsMayMix(name, "it is taken along the records")
    return place


@rule("_fft_r2c _fft_c2r _fft_c2c")
def _fourier(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place, count = _place(given["self"]), len(_shape(given["self"]))
    if place is not None and place.dim in {_positive_dim(dim, count) for dim in given["dim"]}:
        raise RecordsMayMix(name, "it is taken along the records")
    return place


_LAST_DIMS = {
    name: count
    for count, names in {
        1: (
            "avg_pool1d adaptive_avg_pool1d reflection_pad1d replication_pad1d upsample_nearest1d upsample_linear1d "
            "_upsample_nearest_exact1d reflection_pad1d_backward replication_pad1d_backward"
        ),
        2: (
            "linalg_inv_ex linalg_cholesky_ex _linalg_det _linalg_slogdet linalg_qr _linalg_svd _linalg_eigh "
            "linalg_matrix_exp linalg_lu_factor_ex matrix_exp avg_pool2d max_pool2d_with_indices _adaptive_avg_pool2d "
            "adaptive_max_pool2d reflection_pad2d replication_pad2d upsample_nearest2d upsample_bilinear2d "
            "upsample_bicubic2d _upsample_nearest_exact2d col2im avg_pool2d_backward max_pool2d_with_indices_backward "
            "_adaptive_avg_pool2d_backward adaptive_max_pool2d_backward reflection_pad2d_backward "
            "replication_pad2d_backward _cdist_forward _cdist_backward"
        ),
        3: (
            "avg_pool3d max_pool3d_with_indices _adaptive_avg_pool3d adaptive_max_pool3d reflection_pad3d "
            "replication_pad3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa pixel_shuffle pixel_unshuffle "
            "upsample_nearest3d upsample_trilinear3d _upsample_nearest_exact3d grid_sampler_2d im2col channel_shuffle "
            "avg_pool3d_backward max_pool3d_with_indices_backward _adaptive_avg_pool3d_backward "
            "adaptive_max_pool3d_backward reflection_pad3d_backward replication_pad3d_backward "
            "grid_sampler_2d_backward"
        ),
        4: ("grid_sampler_3d"),
    }.items()
    for name in names.split()
}
"""Operations on so many of the last dimensions; all dimensions before them are a batch."""


@rule(" ".join(_LAST_DIMS))
def _last_dims(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    count, tensors = _LAST_DIMS[name], _tensors(given)
    place = _broadcast_place([tensor for tensor in tensors if _place(tensor) is not None], tracer, name)
    if place is None:
        return None
    for tensor in tensors:
        own = _place(tensor)
        if own is not None and own.dim >= len(_shape(tensor)) - count:
            raise RecordsMayMix(name, "it works across the records")
        if own is None and len(_shape(tensor)) > count:
            raise RecordsMayMix(name, _CONSTANT_ROWS)
    if len({len(_shape(tensor)) for tensor in tensors if _place(tensor) is not None}) > 1:
        raise RecordsMayMix(name, _OTHER_RECORDS)
    return place


@rule(
    "upsample_nearest1d_backward upsample_linear1d_backward _upsample_nearest_exact1d_backward "
    "upsample_nearest2d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward "
    "_upsample_nearest_exact2d_backward upsample_nearest3d_backward upsample_trilinear3d_backward"
)
def _upsample_backward(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place = _place(given["grad_output"])
    if place is not None and place.dim > 1:
        raise RecordsMayMix(name, "it works across the records")
    return place


# --- products ---------------------------------------------------------------------------------------------------------------------------


def _product_place(one: Any, other: Any, name: str) -> Place | None:
    """Of matrices (…, n, k)·(…, k, m) with the same number of dimensions, two or three."""
    left, right = _place(one), _place(other)
    rows, columns = len(_shape(one)) - 2, len(_shape(one)) - 1
    if left is not None and right is not None:
        if (
            columns == 2
            and left.dim == right.dim == 0
            and (left.inner == right.inner or ANY in (left.inner, right.inner))
        ):
            return left if left.inner != ANY else right
        raise RecordsMayMix(name, "records of one factor are multiplied with other records of the other")
    place, summed = (left, columns) if left is not None else (right, rows)
    if place is None:
        return None
    if place.dim == summed:
        raise RecordsMayMix(name, "it adds up records")
    if columns == 2 and place.dim == 0:
        raise RecordsMayMix(name, _CONSTANT_ROWS)
    return place


@rule("mm bmm")
def _mm(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    return _product_place(given["self"], given["mat2"], name)


@rule("addmm baddbmm _addmm_activation")
def _addmm(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    one, other = given.get("mat1", given.get("batch1")), given.get("mat2", given.get("batch2"))
    return _add_to_product(_product_place(one, other, name), given["self"], len(_shape(one)), name)  # type: ignore[arg-type]


def _add_to_product(place: Place | None, added: Any, dimensions: int, name: str) -> Place | None:
    """The place of a product with this many dimensions, to which a tensor is added."""
    shape, own = _shape(added), _place(added)
    if place is None:
        if own is not None:
            raise RecordsMayMix(name, "records are added to a product that belongs to none")
        return None
    dim = place.dim - (dimensions - len(shape))
    if own is None:
        if dim >= 0 and shape[dim] != 1:
            raise RecordsMayMix(name, _CONSTANT_ROWS)
    elif own.dim != dim or own.inner not in (place.inner, ANY):
        raise RecordsMayMix(name, _OTHER_RECORDS)
    return place


@rule("mv addmv")
def _mv(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    matrix, vector = (given["self"], given["vec"]) if name == "mv" else (given["mat"], given["vec"])
    place = _place(matrix)
    if _place(vector) is not None:
        raise RecordsMayMix(name, "it adds up records")
    if place is not None and place.dim == 1:
        raise RecordsMayMix(name, "it adds up records")
    return place if name == "mv" else _add_to_product(place, given["self"], 1, name)


@rule("convolution")
def _convolution(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    image, weight, bias = given["input"], given["weight"], given["bias"]
    place, kernel = _place(image), _place(weight)
    if kernel is None:
        if isinstance(bias, TracedTensor) and bias.place is not None:
            raise RecordsMayMix(name, "a bias for each record is added to channels")
        if place is not None and place.dim != 0:
            raise RecordsMayMix(name, "records are taken for channels or pixels")
        return place
    # A kernel for each record, as one convolution with B times the channels, in groups: (1, B·c, …) with (B·o, c/g, …).
    records = tracer.records
    blocks = not given["transposed"] and given["groups"] % records == 0 and kernel.dim == 0 and place is not None
    if not blocks or place is None or place.dim != 1:
        raise RecordsMayMix(name, "kernels of records meet images of others")
    channels, filters = _shape(image)[1], _shape(weight)[0]
    if kernel.inner * records != filters or place.inner * records != channels:
        raise RecordsMayMix(name, "kernels of records meet images of others")
    if bias is not None and (_place(bias) is None or _place(bias) != Place(0, kernel.inner)):
        raise RecordsMayMix(name, "biases of records meet images of others")
    return Place(1, kernel.inner)


@rule("convolution_backward")
def _convolution_backward(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    gradient, image, weight = given["grad_output"], given["input"], given["weight"]
    kernel = _place(weight)
    if kernel is None:
        if any(given["output_mask"][1:]):
            raise RecordsMayMix(name, "the gradient of a kernel adds up records")
        if _place(gradient) not in (None, Place(0, 1)) and _place(gradient).dim != 0:  # type: ignore[union-attr]
            raise RecordsMayMix(name, "records are taken for channels or pixels")
        return [_place(gradient), None, None]
    place, own = _place(gradient), _place(image)
    grouped = given["groups"] % tracer.records == 0 and not given["transposed"]
    if not grouped or place is None or own is None or not place.dim == own.dim == 1 or kernel.dim != 0:
        raise RecordsMayMix(name, "kernels of records meet images of others")
    filters, channels = _shape(weight)[0], _shape(image)[1]
    if (
        place.inner != kernel.inner
        or kernel.inner * tracer.records != filters
        or own.inner * tracer.records != channels
    ):
        raise RecordsMayMix(name, "kernels of records meet images of others")
    return [own, kernel, Place(0, kernel.inner)]


# --- normalisation ----------------------------------------------------------------------------------------------------------------------


@rule("native_layer_norm _fused_rms_norm")
def _layer_norm(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    value = given["input"]
    place = _place(value)
    if any(_place(given.get(key)) is not None for key in ("weight", "bias")):
        raise _NoRule
    if place is not None and place.dim >= len(_shape(value)) - len(given["normalized_shape"]):
        raise RecordsMayMix(name, "it normalises over the records")
    return [place] * (3 if name == "native_layer_norm" else 2)


@rule("native_group_norm")
def _group_norm(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place = _place(given["input"])
    if any(_place(given.get(key)) is not None for key in ("weight", "bias")):
        raise _NoRule
    if place is not None and place.dim != 0:
        raise RecordsMayMix(name, "it normalises over the records")
    return [place] * 3


@rule("native_layer_norm_backward native_group_norm_backward _fused_rms_norm_backward")
def _norm_backward(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    if any(given["output_mask"][1:]):
        raise RecordsMayMix(name, "the gradient of its weight adds up records")
    value = given["input"]
    place = _broadcast_place([given["grad_out"], value], tracer, name)
    if name == "native_group_norm_backward":
        if place is not None and place.dim != 0:
            raise RecordsMayMix(name, "it normalises over the records")
    elif place is not None and place.dim >= len(_shape(value)) - len(given["normalized_shape"]):
        raise RecordsMayMix(name, "it normalises over the records")
    return [place] + [None] * (len(given["output_mask"]) - 1)


@rule("native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional _batch_norm_with_update")
def _batch_norm(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    """Instance norm calls it with records among the channels, (1, B·c, …); running statistics would outlive the records."""
    place = _place(given["input"])
    if place is not None and (place.dim != 1 or given.get("running_mean") is not None):
        raise RecordsMayMix(name, "it normalises over the records")
    for key in ("weight", "bias"):
        value = given.get(key)
        if value is not None and place is not None and (own := _place(value)) != Place(0, place.inner):
            raise RecordsMayMix(
                name, "weights of channels meet other records" if own else "a constant has a row for each record"
            )
    row = None if place is None else Place(0, place.inner)
    return [place, row, row]


@rule("native_batch_norm_backward")
def _batch_norm_backward(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    place = _broadcast_place([given["grad_out"], given["input"]], tracer, name)
    if place is None or place.dim != 1 or given.get("running_mean") is not None:
        raise RecordsMayMix(name, "it normalises over the records")
    row = Place(0, place.inner)
    return [place, row if given["output_mask"][1] else None, row if given["output_mask"][2] else None]


# --- picking by index -------------------------------------------------------------------------------------------------------------------


@rule("embedding")
def _embedding(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    if _place(given["weight"]) is not None:
        raise RecordsMayMix(
            name,
            "a table for each record is read by index: torch's batching rule for it is wrong where there is padding",
        )
    return _place(given["indices"])


@rule("gather scatter scatter_add scatter_reduce take_along_dim")
def _gather(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    tensors = [given["self"], given["index"], *([given["src"]] if isinstance(given.get("src"), Tensor) else [])]
    found = {place for tensor in tensors if (place := _place(tensor)) is not None and place.inner != ANY}
    found = found or {place for tensor in tensors if (place := _place(tensor)) is not None}
    place = next(iter(found), None)
    if place is None:
        return None
    if len(found) > 1 or any(_place(tensor) is None or _place(tensor).dim != place.dim for tensor in tensors):  # type: ignore[union-attr]
        raise RecordsMayMix(name, "it picks rows of other records, or of none")
    if _positive_dim(given["dim"], len(_shape(given["index"]))) == place.dim:
        raise RecordsMayMix(name, "it picks records by index")
    sizes = {_shape(tensor)[place.dim] for tensor in tensors}
    if len(sizes) != 1:
        raise RecordsMayMix(name, "it picks from a part of the records")
    return place


@rule("index_select index_add index_copy index_fill")
def _index_select(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    value, dim = given["self"], _positive_dim(given["dim"], len(_shape(given["self"])))
    place = _place(value)
    if _place(given["index"]) is not None:
        if place is None and name == "index_select" and dim == 0 and len(_shape(given["index"])) == 1:
            return _place(given["index"])  # rows of a table for each record
        raise RecordsMayMix(name, "it picks by an index that belongs to records")
    if place is not None and dim == place.dim:
        raise RecordsMayMix(name, "it picks records by index")
    if isinstance(given.get("source"), Tensor) and _place(given["source"]) != place:
        raise RecordsMayMix(name, "records are written to places of other records")
    return place


def _index_place(given: Arguments, tracer: RecordTracer, name: str) -> Place | None:
    """The place in x[i, j, …]."""
    value, indices = given["self"], given["indices"]
    place = _place(value)
    if any(isinstance(one, TracedTensor) and one.numbers for one in (value, given.get("values"))):
        raise RecordsMayMix(name, _NUMBER_COUNTS)
    used = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if any(index.dtype in (torch.bool, torch.uint8) for _, index in used):
        raise RecordsMayMix(name, "a mask picks a number of entries that depends on values")
    spread = max((len(_shape(index)) for _, index in used), default=0)
    numbered = [(dim, index) for dim, index in used if isinstance(index, TracedTensor) and index.numbers]
    within = _broadcast_place(
        [index for _, index in used if not (isinstance(index, TracedTensor) and index.numbers)], tracer, name
    )
    adjacent = [dim for dim, _ in used] == list(range(used[0][0], used[0][0] + len(used))) if used else True
    start = used[0][0] if adjacent and used else 0
    if place is not None and any(dim == place.dim for dim, _ in used):
        # x[arange(B), i]: row i for record i
        ok = len(numbered) == 1 and numbered[0][0] == place.dim and place == Place(place.dim, 1)
        if not ok or _shape(value)[place.dim] != tracer.records:
            raise RecordsMayMix(name, "it picks records by index")
        own = numbered[0][1].place
        assert own is not None
        here = Place(own.dim + spread - len(_shape(numbered[0][1])), 1)
        if within is not None and within != here:
            raise RecordsMayMix(name, "records of one index meet other records of another")
        for _, index in used:
            dim = here.dim - (spread - len(_shape(index)))
            if _place(index) is None and dim >= 0 and _shape(index)[dim] != 1:
                raise RecordsMayMix(name, _CONSTANT_ROWS)
        return Place(start + here.dim, 1)
    if numbered:
        raise RecordsMayMix(name, _NUMBER_COUNTS)
    if place is None:
        return None if within is None else Place(start + within.dim, within.inner)
    if within is not None:
        raise RecordsMayMix(
            name, "it picks by an index that belongs to records from what has records in another dimension"
        )
    kept = [dim for dim in range(len(_shape(value))) if dim not in {dim for dim, _ in used}]
    at = kept.index(place.dim)
    before = sum(1 for dim in kept if dim < start)
    return Place(at if at < before else at + spread, place.inner)


@rule("index _unsafe_index")
def _index(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    return _index_place(given, tracer, name)


@rule("index_put _unsafe_index_put")
def _index_put(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    value, indices, values = given["self"], given["indices"], given["values"]
    place = _place(value)
    masks = [index for index in indices if index is not None and index.dtype in (torch.bool, torch.uint8)]
    if masks:
        # x[mask] = number
        if len(indices) != 1 or len(_shape(values)) or _place(values) is not None or place is None:
            raise RecordsMayMix(name, "a mask picks a number of entries that depends on values")
        mask = masks[0]
        own, dim = _place(mask), place.dim
        if dim < len(_shape(mask)) and own != place:
            raise RecordsMayMix(name, "a mask of other records")
        if dim >= len(_shape(mask)) and own is not None:
            raise RecordsMayMix(name, "a mask of other records")
        return place
    found = _index_place(given, tracer, name)
    if place is None:
        raise RecordsMayMix(name, "what is computed from records is written by index into what belongs to none")
    target = (
        len(_shape(value))
        - sum(index is not None for index in indices)
        + max((len(_shape(index)) for index in indices if index is not None), default=0)
    )
    own, shape = _place(values), _shape(values)
    assert found is not None
    dim = found.dim - (target - len(shape))
    if own is None:
        if dim >= 0 and shape[dim] != 1:
            raise RecordsMayMix(name, _CONSTANT_ROWS)
    elif own.dim != dim or own.inner not in (found.inner, ANY):
        raise RecordsMayMix(name, "records are written to places of other records")
    return place


# --- attention --------------------------------------------------------------------------------------------------------------------------


@rule("_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_attention_math")
def _attention(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    for key in ("query", "key", "value"):
        place = _place(given[key])
        if place is None or place.dim != 0 or place.inner != 1:
            raise RecordsMayMix(name, "query, key and value do not all have the records in front")
    mask = given.get("attn_mask")
    if mask is not None:
        own, shape = _place(mask), _shape(mask)
        if own is not None and (own.dim != 0 or len(shape) != 4):
            raise RecordsMayMix(name, "a mask of other records")
        if own is None and len(shape) == 4 and shape[0] != 1:
            raise RecordsMayMix(name, _CONSTANT_ROWS)
    return [FRONT, FRONT]


@rule("_scaled_dot_product_flash_attention_for_cpu_backward")
def _attention_backward(given: Arguments, tracer: RecordTracer, name: str) -> Places:
    if any(_place(given[key]) != FRONT for key in ("grad_out", "query", "key", "value")):
        raise RecordsMayMix(name, "query, key and value do not all have the records in front")
    return [FRONT] * 3
