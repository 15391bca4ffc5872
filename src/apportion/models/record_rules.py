"""An operation on traced tensors: the places of its results, by its rule.

Rules stand with their families: `arithmetic_rules.py`, `shape_rules.py`, `index_rules.py`. An operation without a rule is decomposed by
torch's own decompositions; where there is none it is refused. In-place operations have the rule of their ordinary twin, and must leave the
records of what they write to where they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from apportion.models import index_rules, shape_rules  # noqa: F401 (their rules register themselves)
from apportion.models.arithmetic_rules import pointwise
from apportion.models.record_tracer import (
    ANY,
    FRONT,
    PICKED,
    VALUE_SEEN,
    Place,
    RecordsMayMix,
    RecordTracer,
    TracedTensor,
    bind_arguments,
    size_arguments,
    written_arguments,
)
from apportion.models.rule_registry import (
    NUMBER_COUNTS,
    RULES,
    Arguments,
    NoRule,
    Places,
    broadcast_place,
    record_dims,
    tensors_in,
)


def apply_rule(operation: Any, args: Any, kwargs: Any, tracer: RecordTracer) -> Any:
    """Run an operation on traced tensors: results with their places, or `RecordsMayMix`. `NotImplemented` if no record is in it."""
    traced = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, TracedTensor)]
    name = operation.overloadpacket._qualified_op_name.removeprefix("aten::")
    if name in _FACTORY_OPERATIONS or name in _RANDOM_OPERATIONS:
        _require_no_count(operation, args, kwargs, tracer, name, but=_SHAPE_ARGUMENTS)
        return _apply_factory(operation, name, args, kwargs, tracer)
    expands = name in ("expand", "repeat") and bool(record_dims(args[1], tracer))
    if not traced and not expands:
        return _apply_to_constants(operation, name, args, kwargs, tracer)
    if name in ("prim::device", "prim::layout", "_fused_sdp_choice", "is_same_size", "sym_size", "sym_stride"):
        return tracer.result_shapes(operation, args, kwargs)
    if name == "_linalg_check_errors":
        return None  # raises for a matrix that has no inverse, and nothing else
    if name in ("_local_scalar_dense", "is_nonzero", "equal", "item"):
        raise RecordsMayMix(name, VALUE_SEEN)
    if any(one.place == PICKED for one in traced):
        raise RecordsMayMix(name, "one record is picked out of the batch by its place")
    if all(one.place is None for one in traced) and not expands:
        _require_no_count(operation, args, kwargs, tracer, name)
        return _apply_to_no_record(operation, args, kwargs, tracer)
    _require_no_count(operation, args, kwargs, tracer, name, but=_SHAPE_ARGUMENTS)
    if any(one.numbers for one in traced) and name not in _KEEP_NUMBERS | _PICK_BY_NUMBERS:
        raise RecordsMayMix(name, NUMBER_COUNTS)
    return _apply_to_records(operation, name, args, kwargs, tracer, traced)


def _apply_to_constants(operation: Any, name: str, args: Any, kwargs: Any, tracer: RecordTracer) -> Any:
    """An operation on what has values, and belongs to no record."""
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
    written = _written_tensors(operation, args, kwargs)
    try:
        found = _find_places(name, operation, bind_arguments(operation, args, kwargs), tracer)
    except NoRule:
        made = NotImplemented if written else tracer.decompose(operation, args, kwargs)
        if made is NotImplemented:
            raise RecordsMayMix(name, "it is not known that this operation keeps records apart") from None
        return made
    if torch.Tag.inplace_view in operation.tags:
        return tracer.reshape_in_place(operation, args, kwargs, written[0], found)
    for target in written:
        if found != target.place or (target.place.inner != ANY and tracer.has_unknown_order(target)):
            raise RecordsMayMix(name, "records are written to places of other records")
    numbers = name in _KEEP_NUMBERS and bool(traced) and all(one.numbers for one in traced)
    return _wrap_results(tracer, tracer.result_shapes(operation, args, kwargs), found, written, operation, numbers)


def _apply_to_no_record(operation: Any, args: Any, kwargs: Any, tracer: RecordTracer) -> Any:
    """Weights and random numbers belong to no record, whatever is done to them; but they move, so that nobody may look at them."""
    written = _written_tensors(operation, args, kwargs)
    if torch.Tag.inplace_view in operation.tags:
        return tracer.reshape_in_place(operation, args, kwargs, written[0], None)
    return _wrap_results(tracer, tracer.result_shapes(operation, args, kwargs), None, written, operation)


def _written_tensors(operation: Any, args: Any, kwargs: Any) -> list[Any]:
    """The tensors that an operation writes to. Refuses one that outlives what is computed with it."""
    written = written_arguments(operation, args, kwargs)
    if not all(isinstance(target, TracedTensor) for target in written):
        raise RecordsMayMix(
            str(operation),
            "what comes from records, weights or random numbers is written into a tensor that outlives them",
        )
    return written


def _find_places(name: str, operation: Any, given: Arguments, tracer: RecordTracer) -> Places:
    ordinary = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    found = RULES.get(ordinary)
    if found is not None:
        return found(given, tracer, ordinary)
    if torch.Tag.pointwise in operation.tags:
        return pointwise(given, tracer, ordinary)
    raise NoRule


def _wrap_results(
    tracer: RecordTracer, metas: Any, found: Places, written: list[Any], operation: Any, numbers: bool = False
) -> Any:
    """The results with their places; an operation that writes returns what it wrote to."""
    results = operation._schema.returns
    if written and len(written) == len(results):
        return written[0] if len(written) == 1 else tuple(written)

    def wrap(meta: Any, place: Place | None) -> Any:
        if not isinstance(meta, Tensor):
            return meta
        _require_one_dimension(operation, meta, place, tracer)
        return tracer.wrap(meta, place, numbers=numbers)

    if not isinstance(metas, (tuple, list)):
        return wrap(metas, found)
    each = found if isinstance(found, list) else [found] * len(metas)
    return type(metas)(wrap(meta, place) for meta, place in zip(metas, each, strict=True))


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
    given = bind_arguments(operation, args, kwargs)
    sizes = tree_leaves([given.get(argument) for argument in size_arguments(operation) - allowed])
    if any(isinstance(size, int) and tracer.is_record_multiple(size) for size in sizes):
        raise RecordsMayMix(name, "what is computed depends on the number of records in the batch")


def _require_one_dimension(operation: Any, meta: Tensor, place: Place | None, tracer: RecordTracer) -> None:
    """Refuse a result with as many entries as records beside the dimension of the records: a sum over them would count the records."""
    if any(place is None or dim != place.dim for dim in record_dims(meta.shape, tracer)):
        name = operation.overloadpacket.__name__
        raise RecordsMayMix(name, "a dimension is as long as there are records and does not belong to them")


# --- what is made without arguments of records ------------------------------------------------------------------------------------------

_FACTORY_OPERATIONS = frozenset(
    f"{prefix}{name}{suffix}"
    for name in ("zeros", "ones", "full", "empty")
    for prefix, suffix in (("", ""), ("new_", ""), ("", "_like"))
) | {"empty_strided", "new_empty_strided", "scalar_tensor"}
_RANDOM_OPERATIONS = frozenset(
    {"rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "normal", "bernoulli", "poisson"}
)
_VIEW_OPERATIONS = (
    "view reshape _unsafe_view _reshape_alias expand unsqueeze squeeze permute transpose t detach alias clone "
    "_to_copy lift_fresh slice"
)
_KEEP_NUMBERS = frozenset(_VIEW_OPERATIONS.split())
"""Operations after which row i still holds the number i."""
_PICK_BY_NUMBERS = frozenset({"index", "index_put", "index_put_", "_unsafe_index", "_unsafe_index_put"})
"""Operations that use the numbers to pick rows."""


def _apply_factory(operation: Any, name: str, args: Any, kwargs: Any, tracer: RecordTracer) -> Any:
    """The same number everywhere, or independent random numbers: every dimension with a size of B can be that of the records."""
    like = next((leaf for leaf in tree_leaves(args) if isinstance(leaf, TracedTensor)), None)
    meta = tracer.result_shapes(operation, args, kwargs)
    if like is not None and (name.endswith("_like") or name in _RANDOM_OPERATIONS):
        place = broadcast_place(tensors_in((args, kwargs)), name)
        _require_one_dimension(operation, meta, place, tracer)
        return tracer.wrap(meta, place)
    dims = record_dims(meta.shape, tracer)
    if len(dims) > 1:
        raise RecordsMayMix(name, "there are as many entries as records in two dimensions")
    if len(dims) == 1:
        return tracer.wrap(meta, Place(dims[0], 1 if meta.shape[dims[0]] == tracer.records else ANY))
    if like is None and name not in _RANDOM_OPERATIONS:
        return NotImplemented
    return tracer.wrap(meta, None)  # nobody may look at chance: it would decide otherwise the next time


def _record_numbers(operation: Any, args: Any, kwargs: Any, tracer: RecordTracer) -> Any:
    """0 … B−1."""
    given = bind_arguments(operation, args, kwargs)
    if given["end"] != tracer.records or given.get("start", 0) != 0 or given.get("step", 1) != 1:
        return None
    return tracer.wrap(tracer.result_shapes(operation, args, kwargs), FRONT, numbers=True)
