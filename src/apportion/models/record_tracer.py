"""Trace the record dimension of a batch through any code that runs on torch: a proof that rows stay apart, not a probe.

A batch of B records is run as tensors that have a shape and no values (`TracedTensor`). Each carries its **place**: where its record
dimension is, or that it has none. Every operation, at the level of torch's dispatcher, has a rule (`record_rules.py`) that says where the
records of its result are, *if row i of the result is made of row i of the arguments and of what belongs to no record*; otherwise, and
wherever there is no rule, the operation is refused. Code that is not refused therefore computes, for every record, a function of that
record alone. As nothing has a value, no value can decide what is computed: code that asks for one (`if x.sum() > 0`, `.item()`,
`.tolist()`) is refused. The backward pass is made of operations too, and is traced likewise.

**A place is a factor of a dimension.** Linear layers flatten (B, T, F) to (B·T, F) and recurrent ones (T, B, F) to (T·B, F).
`Place(dim, inner)` says that index j of dimension `dim` belongs to record (j // inner) mod B. B is a prime that divides no size of the
model, so that no other dimension can be taken for it.

**What belongs to no record** may be broadcast over the records. It must not have a row for each of them: what a record gets would then
depend on its place in the batch, and one record in front would change all others. Exceptions: what is the same in every row (zeros, an
expanded parameter), random numbers (independent and secret), and the records' own numbers 0 … B−1 where they only serve to pick row i for
record i. Weights have no values here either: they move, and what is computed must not depend on what they are at the beginning.

**The number of records** must not matter either. Everything is run with two different B, and the operations with all their numbers, on
the same tensors, must be the same but for sizes that are multiples of B. Such a size may only be that of the records' own dimension:
whatever else is as long, cut or moved by it is refused, for its values would depend on B on one and the same path. Code that looks at B
itself (`if len(x) > 100`) is noticed, because sizes are handed out as `RecordCount`s; what was shown then holds for the B's that were run,
and a run with another B tells whether it takes the same path. A `RecordCount` is an `int`, and what is written in C reads it without asking
(`range`, indices of lists, `math.gcd`): code that decides by those what to compute is not noticed, but for what depends on divisors, which
a run with a B that has many shows (`proof.py`). Nor is code noticed that asks the clock, the operating system's entropy, generators of its
own or what it has left behind outside the modules of the model.
"""

from __future__ import annotations

import functools
import hashlib
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch._decomp import decomposition_table
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from apportion.errors import ApportionError
from apportion.models.record_count import RecordCount, Shape

ANY = 0
"""An `inner` of what is the same for every record: it fits every order."""


def leave_uncompiled() -> AbstractContextManager[Any]:
    """What `torch.compile` was told to compile runs as it was written.

    It never compiles a model under a mode of the dispatcher, but the mode's own code if a compiled model calls it: minutes for a tracer.
    """
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


class Place(NamedTuple):
    """Where records are: index j of dimension `dim` belongs to record (j // inner) mod B."""

    dim: int
    inner: int = 1


FRONT = Place(0)
PICKED = Place(-1)
"""Of what belongs to one record that was picked by its place. vmap does so to look at types; nobody may compute with it."""


VALUE_SEEN = "a value is looked at that comes from records, weights or chance"


class RecordsMayMix(ApportionError):
    """Rows of different records meet in an operation, or it is not known that they do not.

    Args:
        operation: its name in torch.
        reason: a phrase without a full stop.
    """

    def __init__(self, operation: str, reason: str):
        super().__init__(f"{operation}: {reason}")
        self.operation, self.reason = operation, reason


class TracedTensor(Tensor):
    """A tensor without values that knows its place."""

    meta: Tensor
    """Shape, type and strides, on torch's device without values."""
    place: Place | None
    numbers: bool
    """Whether row i holds the number i: good for picking rows, and for nothing else."""
    origin: tuple[Any, ...] | None = None
    """Where on the path it was made."""

    @staticmethod
    def __new__(cls, meta: Tensor, place: Place | None, device: torch.device, numbers: bool = False) -> TracedTensor:
        made: TracedTensor = Tensor._make_wrapper_subclass(
            cls,
            meta.shape,
            strides=meta.stride(),
            storage_offset=meta.storage_offset(),
            dtype=meta.dtype,
            layout=meta.layout,
            device=device,
        )
        made.meta, made.place, made.numbers = meta, place, numbers
        return made

    def __init__(self, meta: Tensor, place: Place | None, device: torch.device, numbers: bool = False):
        pass

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise RecordsMayMix(str(operation), "a traced tensor left the run that traces it")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"TracedTensor({list(self.meta.shape)}, {self.place})"


class Operation(NamedTuple):
    """One operation of a path, without the values of its tensors."""

    name: str
    numbers: tuple[Any, ...]
    """Its arguments: numbers, the values of constants, and of what the path has computed itself where on the path that was."""
    sizes: tuple[Any, ...]
    """What may grow in proportion to the number of records: sizes and indices, and the shapes of its tensors."""
    traced: bool
    """Whether its result belongs to records, or to weights or chance."""
    taken_apart: bool = False
    """Whether the operations that come next are those of which torch makes it."""


@dataclass
class Path:
    """What was run: the operations in their order, and whether the number of records was looked at."""

    records: int
    operations: list[Operation] = field(default_factory=list)
    looks_at_count: bool = False
    alone_outputs: dict[str, list[Any]] = field(default_factory=dict)
    """What modules that run one record after the other returned, by module and call: only for outputs of this kind it is the path."""

    def find_difference(self, other: Path) -> str | None:
        """Why `other`, the beginning of a run with another number of records, is not the same path; `None` if it is."""
        if len(other.operations) > len(self.operations):
            return "the number of operations depends on the number of records in the batch"
        differences = (
            self.compare_operation(index, theirs, other.records) for index, theirs in enumerate(other.operations)
        )
        return next((difference for difference in differences if difference is not None), None)

    def compare_operation(self, index: int, other: Operation, records: int) -> str | None:
        """Whether operation `index` is another one in a run with so many records, and how."""
        mine = self.operations[index]
        if mine.name != other.name or not _arguments_equal(mine.numbers, other.numbers):
            return f"{other.name}: what is computed depends on the number of records in the batch"
        if len(mine.sizes) != len(other.sizes) or not all(
            one == two or (type(one) is type(two) is int and one * records == two * self.records)
            for one, two in zip(mine.sizes, other.sizes, strict=True)
        ):
            return f"{other.name}: a size depends on the number of records in another way than in proportion"
        return None


def _arguments_equal(mine: tuple[Any, ...], theirs: tuple[Any, ...]) -> bool:
    return len(mine) == len(theirs) and all(
        type(one) is type(two) and (one == two or (one != one and two != two))
        for one, two in zip(mine, theirs, strict=True)
    )


_SIZE_QUERIES = {Tensor.__len__, Tensor.is_contiguous, Tensor.is_same_size, torch.is_same_size, Tensor.__sizeof__}
"""Of what these answer, nobody can see that it is about the number of records."""
_VALUE_METHODS = (
    "item tolist numpy __bool__ __float__ __int__ __index__ __complex__ __contains__ __array__ __dlpack__ data_ptr "
    "untyped_storage storage is_nonzero __reduce_ex__"
)
_VALUE_QUERIES = {getattr(Tensor, name) for name in _VALUE_METHODS.split() if hasattr(Tensor, name)}


class _PythonQueries(TorchFunctionMode):
    """What Python code asks a tensor beside computing with it."""

    def __init__(self, tracer: RecordTracer):
        super().__init__()
        self._tracer = tracer

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in _SIZE_QUERIES:
            if any(isinstance(one, Tensor) and any(map(self._tracer.is_record_multiple, one.shape)) for one in args):
                self._tracer.mark_count_seen()
            return function(*args, **kwargs)
        if function in (torch.autograd.backward, torch.autograd.grad, Tensor.backward):
            return self._backward(function, args, kwargs)
        if any(callable(one) and not isinstance(one, type) for one in (*args, *kwargs.values())):
            self._tracer.mark_count_seen()  # it would be called from where nobody watches
        if function == Tensor.data.__set__ and any(isinstance(one, TracedTensor) for one in args):  # type: ignore[attr-defined]
            raise self._tracer.refuse("data", "a tensor is exchanged for another one")
        if function in (torch.cross, Tensor.cross) and kwargs.get("dim", args[2] if len(args) > 2 else None) is None:
            raise self._tracer.refuse("cross", "without a dimension it takes that of three records. Name it: dim=")
        if function in _VALUE_QUERIES and isinstance(args[0], TracedTensor):
            raise self._tracer.refuse(function.__name__, VALUE_SEEN)
        if function in (torch.nn.functional.one_hot, torch._C._nn.one_hot) and isinstance(args[0], Tensor):
            classes = kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
            if classes > 0:  # torch looks at the values only to refuse those out of range
                return (args[0].unsqueeze(-1) == torch.arange(classes)).to(torch.int64)
        found = function(*args, **kwargs)
        return self._counted(found) if isinstance(found, (int, tuple)) else found

    def _backward(self, function: Any, args: Any, kwargs: Any) -> Any:
        """torch runs what answers a question without this mode; the functions of a backward pass may ask too."""
        run = torch.autograd._engine_run_backward

        def watched(*given: Any, **named: Any) -> Any:
            with self:
                return run(*given, **named)

        torch.autograd._engine_run_backward = watched
        self._tracer.passes_back += 1
        try:
            return function(*args, **kwargs)
        finally:
            self._tracer.passes_back -= 1
            torch.autograd._engine_run_backward = run

    def _counted(self, found: Any) -> Any:
        def one(size: int) -> int:
            return (
                RecordCount.of(size, self._tracer)
                if type(size) is int and self._tracer.is_record_multiple(size)
                else size
            )

        if isinstance(found, torch.Size):
            return Shape(one(size) for size in found)
        return tuple(one(size) for size in found) if type(found) is tuple else one(found)


def _meta_maker(tensor: Tensor) -> functools.partial[Tensor]:
    """Makes tensors like this one, without values."""
    return functools.partial(torch.empty_strided, tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _to_meta(leaf: Any) -> Any:
    if isinstance(leaf, TracedTensor):
        return leaf.meta
    if isinstance(leaf, Tensor):
        return _meta_maker(leaf)()
    return torch.device("meta") if isinstance(leaf, torch.device) else leaf


_SHAPE_CACHE: dict[Any, Any] = {}
"""From an operation and what it is called with to the shapes of its results: torch works some of these out in Python, slowly."""
_SHAPE_CACHE_SIZE = 10_000


def _shape_key(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype
    return type(leaf), leaf


@functools.cache
def _makes_views(operation: Any) -> bool:
    """Whether results share memory with arguments, or arguments are written to."""
    return any(one.alias_info is not None for one in (*operation._schema.arguments, *operation._schema.returns))


@functools.cache
def _takes_device(operation: Any) -> bool:
    return any(argument.name == "device" for argument in operation._schema.arguments)


@functools.cache
def size_arguments(operation: Any) -> frozenset[str]:
    """The arguments that are sizes or indices, SymInt in torch's schemas; what is computed with is a Scalar, a float or an int."""
    if operation.overloadpacket.__name__ == "arange":
        return frozenset(("start", "end", "step"))
    return frozenset(re.findall(r"SymInt(?:\[\d*\])?\??\s+(\w+)", str(operation._schema)))


def bind_arguments(operation: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """What an operation is given, by the names of its arguments."""
    return {
        argument.name: args[index] if index < len(args) else kwargs.get(argument.name, argument.default_value)
        for index, argument in enumerate(operation._schema.arguments)
    }


def _digest_constant(value: Tensor) -> Any:
    """The numbers of a tensor that belongs to no record, to be compared."""
    if value.numel() == 1 and not value.is_meta:
        return value.item()
    plain = value.detach().cpu().contiguous()
    content = plain.view(torch.uint8) if plain.dim() and plain.dtype != torch.bool else plain
    return tuple(plain.shape), hashlib.blake2b(content.numpy().tobytes()).digest()


def written_arguments(operation: Any, args: Any, kwargs: Any) -> list[Any]:
    """The tensors that an operation writes to."""
    given = bind_arguments(operation, args, kwargs)
    written = [
        one.name for one in operation._schema.arguments if one.alias_info is not None and one.alias_info.is_write
    ]
    return [given[name] for name in written if isinstance(given[name], Tensor)]


def _generator_states() -> tuple[Any, ...]:
    """The states of Python's and NumPy's random numbers, to be compared."""
    parts: Any = np.random.get_state()
    return random.getstate(), *(part.tobytes() if isinstance(part, np.ndarray) else part for part in parts)


class RecordTracer(TorchDispatchMode):
    """Runs code on traced tensors of `records` records. A context manager; use `run`, which also watches what code asks of tensors.

    Args:
        records: B.
        rules: from an operation, its arguments and this tracer to the places of its results (`apply_rule`).
        device: of the tensors.
        known: the path of an earlier run. If it is given, this run is compared with it operation by operation instead of asking the
            rules, so that B need not be a prime.
    """

    def __init__(self, records: int, rules: Callable[..., Any], device: torch.device, known: Path | None = None):
        super().__init__()
        self.records, self._rules, self.device, self.known = records, rules, device, known
        self.path = Path(records)
        self._computed = WeakTensorKeyDictionary()
        self._made: Counter[str] = Counter()
        self._asked = self.passes_back = 0
        self._running = False
        self._unordered: dict[int, Any] = {}
        self.refusal: RecordsMayMix | None = None
        self.stage: Literal["model", "loss", "backward pass"] = "model"
        self.modules: list[str] = []
        """The modules whose forward pass is running, from the outermost to the innermost."""
        self.refused_in: tuple[str, ...] = ()

    def trace_batch(self, record: Tensor) -> TracedTensor:
        """A batch of B records like this one, in front."""
        return self.make_traced((self.records, *record.shape), FRONT, record)

    def make_traced(self, shape: Sequence[int], place: Place | None, like: Tensor) -> TracedTensor:
        """A tensor of this shape whose records are known to be at `place`."""
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            sizes = tuple(int.__int__(size) for size in shape)
            made = self.wrap(torch.empty(sizes, dtype=like.dtype, device="meta"), place)
        return self._assign_origin(made, "made" if self._running else "given")

    def _assign_origin(self, made: TracedTensor, kind: str) -> TracedTensor:
        """What no operation has made, with its number among those of its kind, which is the same in every run."""
        made.origin = (kind, self._made[kind])
        self._made[kind] += 1
        return made

    def wrap(self, meta: Tensor, place: Place | None, *, numbers: bool = False) -> TracedTensor:
        """A tensor of this shape at this place."""
        if place is not None and place.inner == ANY:
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                storage = meta.untyped_storage()
                self._unordered[storage._cdata] = storage
        return TracedTensor(meta, place, self.device, numbers)

    def hide_weights(self, model: nn.Module) -> None:
        """Put tensors without values in place of all parameters: weights move, so what is computed must not depend on what they are."""
        hidden: dict[int, TracedTensor] = {}
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    if id(parameter) not in hidden:
                        hidden[id(parameter)] = self._assign_origin(
                            self.wrap(_to_meta(parameter.detach()), None), "weight"
                        )
                        hidden[id(parameter)].requires_grad_(parameter.requires_grad)
                        hidden[id(parameter)]._is_param = True  # so that it is an nn.Parameter for those who ask
                    module._parameters[name] = hidden[id(parameter)]  # type: ignore[assignment]

    def is_record_multiple(self, size: int | None) -> bool:
        """Whether a size or an index is a multiple of the number of records. (The largest index that there is means no end.)"""
        return size is not None and 0 < abs(size) < sys.maxsize and size % self.records == 0

    def has_unknown_order(self, tensor: TracedTensor) -> bool:
        """Whether the memory of a tensor belongs to another one too, in which the order of records is not settled."""
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return tensor.meta.untyped_storage()._cdata in self._unordered

    def mark_count_seen(self) -> None:
        """Somebody looks at the number of records: with another one, the path may be another one. Only forward passes of models are run
        again, so losses and backward passes must not look."""
        self.path.looks_at_count = True
        if self.stage == "loss" or self.passes_back:
            where = "the loss" if self.stage == "loss" else "backward"
            raise self.refuse(where, "it looks at the number of records in the batch")

    def record_refusal(self, error: RecordsMayMix) -> RecordsMayMix:
        """Remember the first refusal, so that a model cannot catch it and go on otherwise."""
        if self.refusal is None:
            self.refusal, self.refused_in = error, tuple(self.modules)
        return error

    def refuse(self, operation: str, reason: str) -> RecordsMayMix:
        """A refusal that is remembered."""
        return self.record_refusal(RecordsMayMix(operation, reason))

    @contextmanager
    def run(self) -> Iterator[None]:
        """Code in this context is traced. Afterwards raises the first refusal, also one that was caught inside."""
        before, self._running = _generator_states(), True
        try:
            with leave_uncompiled(), self, _PythonQueries(self), self._watch_scripts():
                yield
        except RecordsMayMix as error:
            raise self.record_refusal(error) from None
        if self.refusal is not None:
            raise self.refusal
        if _generator_states() != before:
            raise self.refuse("random", "Python's or NumPy's random numbers may decide what is computed")

    @contextmanager
    def _watch_scripts(self) -> Iterator[None]:
        """TorchScript asks for sizes without Python, so whatever is written in it may look at the number of records."""
        kinds = torch._C.ScriptFunction, torch._C.ScriptMethod
        calls = [kind.__call__ for kind in kinds]

        def watched(call: Any) -> Callable[..., Any]:
            def seen(script: Any, *args: Any, **kwargs: Any) -> Any:
                self.mark_count_seen()
                return call(script, *args, **kwargs)

            return seen

        for kind, call in zip(kinds, calls, strict=True):
            kind.__call__ = watched(call)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for kind, call in zip(kinds, calls, strict=True):
                kind.__call__ = call  # type: ignore[method-assign]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # it would be imported to be skipped, which takes two seconds; see `leave_uncompiled`

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            try:
                return self._dispatch(operation, args, kwargs or {})
            except RecordsMayMix as error:
                raise self.record_refusal(error) from None

    def _dispatch(self, operation: Any, args: Any, kwargs: Any) -> Any:
        index = len(self.path.operations)
        noted = self._describe(operation, args, kwargs)
        self.path.operations.append(noted)
        if self.known is not None:
            found = self._replay(index, operation, args, kwargs)
        else:
            self._asked = index
            found = self._rules(operation, args, kwargs, self)
            if found is NotImplemented:  # nothing of a record in it
                found = operation(*args, **kwargs)
            else:
                self.path.operations[index] = self.path.operations[index]._replace(traced=True)
        for number, value in enumerate(tree_leaves(found)):
            if isinstance(value, TracedTensor):
                value.origin = value.origin or (index, number)
            elif isinstance(value, Tensor):
                self._computed.setdefault(value, (index, number))
        return found

    def _replay(self, index: int, operation: Any, args: Any, kwargs: Any) -> Any:
        assert self.known is not None
        if index >= len(self.known.operations):
            raise RecordsMayMix(
                str(operation), "the number of operations depends on the number of records in the batch"
            )
        if (difference := self.known.compare_operation(index, self.path.operations[index], self.records)) is not None:
            raise RecordsMayMix(*difference.split(": ", 1))
        if not self.known.operations[index].traced:
            return operation(*args, **kwargs)
        if self.known.operations[index].taken_apart:
            return self.decompose(operation, args, kwargs)
        written = written_arguments(operation, args, kwargs)
        if torch.Tag.inplace_view in operation.tags:
            return self.reshape_in_place(operation, args, kwargs, written[0], None)
        results = self.result_shapes(operation, args, kwargs)
        if written:
            return written[0] if len(written) == 1 else tuple(written)
        return tree_map(lambda leaf: self.wrap(leaf, None) if isinstance(leaf, Tensor) else leaf, results)

    def reshape_in_place(
        self, operation: Any, args: Any, kwargs: Any, target: TracedTensor, place: Place | None
    ) -> TracedTensor:
        """An operation that changes the shape of its first argument, as `squeeze_` does."""
        self.result_shapes(operation, args, kwargs)
        with no_dispatch():
            operation(*args, **kwargs)
        target.place = place
        return target

    def _describe(self, operation: Any, args: Any, kwargs: Any) -> Operation:
        numbers: list[Any] = []
        sizes: list[Any] = []
        for name, value in bind_arguments(operation, args, kwargs).items():
            for leaf in tree_leaves(value):
                if isinstance(leaf, torch.ScriptObject):
                    numbers.append(type(leaf))  # a handle, as of the profiler's: two of them cannot be compared
                    continue
                if not isinstance(leaf, Tensor):
                    (sizes if name in size_arguments(operation) else numbers).append(leaf)
                    continue
                sizes.extend(leaf.meta.shape if isinstance(leaf, TracedTensor) else leaf.shape)
                if isinstance(leaf, TracedTensor):
                    numbers.append(leaf.origin)
                else:  # numbers come as tensors too
                    numbers.append(self._computed[leaf] if leaf in self._computed else _digest_constant(leaf))
        return Operation(str(operation), tuple(numbers), tuple(sizes), traced=False)

    def result_shapes(self, operation: Any, args: Any, kwargs: Any) -> Any:
        """What the operation returns, as tensors without values."""
        plain = tree_map(_to_meta, (args, kwargs))
        if _takes_device(operation):
            plain[1]["device"] = torch.device("meta")
        if _makes_views(operation):
            return operation(*plain[0], **plain[1])
        key = (operation, *map(_shape_key, tree_leaves(plain)), *plain[1])
        if key not in _SHAPE_CACHE:
            if len(_SHAPE_CACHE) >= _SHAPE_CACHE_SIZE:
                _SHAPE_CACHE.clear()
            results = operation(*plain[0], **plain[1])
            _SHAPE_CACHE[key] = tree_map(lambda leaf: _meta_maker(leaf) if isinstance(leaf, Tensor) else leaf, results)
        return tree_map(lambda leaf: leaf() if isinstance(leaf, functools.partial) else leaf, _SHAPE_CACHE[key])

    def decompose(self, operation: Any, args: Any, kwargs: Any) -> Any:
        """Run what torch itself says that an operation is made of; `NotImplemented` if it does not say."""
        if self.known is None:
            self.path.operations[self._asked] = self.path.operations[self._asked]._replace(taken_apart=True)
        with self:
            return decomposition_table.get(operation, operation.decompose)(*args, **kwargs)
