"""What `torch.func.vmap` gets wrong without saying so, and a guard around a call of it.

`vmap` replaces every operation by one on the whole micro-batch, by a rule that torch has for it. Where there is no rule it raises, and
a slower engine is used. But some rules are wrong: a record's gradient is then not the one it has alone, or even depends on its place in
the micro-batch and on its neighbours. `WRONG_RULES` lists those that were found by comparing every operation with single records
(`tests/curator/test_batching_rules.py`, which also notices when torch fixes one).

    with no_wrong_batching_rules():
        outputs = vmap(alone, randomness="different")(copies, inputs)

computes the operations of the table in another way, by rules that are right, or refuses the model. Functions are met where they are called
(`TorchFunctionMode`). Operators that get to the kernels by another way, as those of a scripted function do, are refused there
(`TorchDispatchMode`), as far as they can be told from right ones after batching. The backward pass of an `autograd.Function` whose rule
torch writes runs under `vmap` too, when the loss is differentiated: it is guarded if that happens within the guard.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.func import vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode, redispatch_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from apportion.curator.gradients.batching_forms import TRACEABLE_FORMS, without_padding
from apportion.curator.tree import drop_objects
from apportion.errors import UnsupportedModel


def _always(*_: Any, **__: Any) -> bool:
    return True


@dataclass(frozen=True)
class WrongRule:
    """One operation that comes out wrong under `vmap`.

    Args:
        operation: its name, for people, with the condition under which it is wrong.
        fault: what goes wrong, in one sentence.
        called: the functions that compute it, as a `TorchFunctionMode` sees them. They take the same arguments.
        met: whether a call with these arguments meets the condition.
        instead: computes the same with rules that are right. Without it the model is refused.
        operators: what is left of it at the kernels, after batching, where `met` can tell that from a right call.
        seen: versions of torch that have the fault.
    """

    operation: str
    fault: str
    called: tuple[Any, ...]
    met: Callable[..., bool] = _always
    instead: Callable[..., Any] | None = None
    operators: tuple[Any, ...] = ()
    seen: tuple[str, ...] = ("2.13.0",)


def _every_overload(name: str) -> tuple[Any, ...]:
    """Every way to call an operator: torch.name(x), x.name(), torch.ops.aten.name(x), with or without its overload."""
    packet = getattr(torch.ops.aten, name)
    places = [getattr(place, name) for place in (torch, Tensor) if hasattr(place, name)]
    return (*places, packet, *(getattr(packet, overload) for overload in packet.overloads()))


# Embedding


def _function_pads(input: Tensor, weight: Tensor, padding_idx: int | None = None, *_: Any, **__: Any) -> bool:
    return padding_idx is not None


def _function_without_padding(input: Tensor, weight: Tensor, padding_idx: int, *rest: Any, **named: Any) -> Tensor:
    """Rows of padding have the same values and no gradient."""
    found: Any = TRACEABLE_FORMS[functional.embedding](input, weight, padding_idx, *rest, **named)
    if isinstance(found, Tensor):
        return found
    rows = functional.embedding(input, weight, None, *rest, **named)
    return without_padding(rows, input, padding_idx % weight.size(0))


def _operator_pads(weight: Tensor, indices: Tensor, padding_idx: int = -1, *_: Any, **__: Any) -> bool:
    return padding_idx >= 0


def _operator_without_padding(weight: Tensor, indices: Tensor, padding_idx: int, *rest: Any, **named: Any) -> Tensor:
    rows = torch.embedding(weight, indices, -1, *rest, **named)
    return without_padding(rows, indices, padding_idx)


# Values that several elements of a record share


def _reduces_everything(input: Tensor, *rest: Any, **named: Any) -> bool:
    return not rest and not named and input.is_floating_point()


class _TiedValue(torch.autograd.Function):
    """A value of a tensor; its gradient in equal shares to all elements that have this value."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        values, value = inputs
        context.save_for_backward(torch.where(value.isnan(), values.isnan(), values == value))

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (ties,) = context.saved_tensors
        return torch.where(ties, gradient / ties.sum(), 0), None


def _with_tied_gradient(choose: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def chosen(input: Tensor) -> Tensor:
        shared: Tensor = _TiedValue.apply(input, choose(input.detach()))
        return shared

    return chosen


# Shapes


def _is_scalar(input: Tensor, *_: Any, **__: Any) -> bool:
    return input.dim() == 0


def _clone(input: Tensor, *_: Any, **__: Any) -> Tensor:
    return input.clone()


def _scatter_slice(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    start = index + input.size(dim) if index < 0 else index
    return torch.slice_scatter(input, src.unsqueeze(dim), dim, start, start + 1)


def _value_is_tensor(input: Tensor, dim: int, index: Tensor, value: Any) -> bool:
    return isinstance(value, Tensor)


def _fill_copies(input: Tensor, dim: int, index: Tensor, value: Tensor) -> Tensor:
    """The input gets a copy for every record that has a value of its own."""
    own = torch.where(torch.ones_like(value, dtype=torch.bool), input, input)
    return torch.index_fill(own, dim, index, value)


def _without_dimension(input: Tensor, *rest: Any, **named: Any) -> bool:
    return not rest and not named


def _squeeze_one_by_one(input: Tensor) -> Tensor:
    for dimension in reversed([place for place, size in enumerate(input.shape) if size == 1]):
        input.squeeze_(dimension)
    return input


def _grows(input: Tensor, batch1: Tensor, batch2: Tensor, **_: Any) -> bool:
    return tuple(input.shape) != (batch1.size(1), batch2.size(2))


# What a tensor says of itself


def _read_unwrapped(attribute: str) -> Callable[[Tensor], Any]:
    def read(tensor: Tensor, *_: Any) -> Any:
        return getattr(_unwrap(tensor), attribute)

    return read


def _unwrap(tensor: Tensor) -> Tensor:
    """The tensor of the whole micro-batch, below the wrappers of `vmap`."""
    while torch._C._functorch.is_batchedtensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


# Losses


def _has_options(*_: Any, options: Any = None, **__: Any) -> bool:
    return options is not None


def _without_options(*arguments: Any, options: Any, **named: Any) -> Tensor:
    loss: Tensor = functional.linear_cross_entropy(*arguments, **named)
    return loss


def _has_own_generator(*_: Any, generator: Any = None, **__: Any) -> bool:
    return generator is not None


_OWN_GENERATOR = WrongRule(
    operation="random numbers from generator=",
    fault="all records draw from one stream, so what a record draws depends on its place in the micro-batch and is not what it "
    "draws alone",
    called=(),
    met=_has_own_generator,
)
"""Of any function that takes one."""

WRONG_RULES: tuple[WrongRule, ...] = (
    WrongRule(
        operation="embedding with padding_idx",
        fault="the tables of all records are put one below the other and only row padding_idx of the first is padding, so the "
        "padding of all other records gets a gradient",
        called=(functional.embedding,),
        met=_function_pads,
        instead=_function_without_padding,
    ),
    WrongRule(
        operation="the operator embedding with padding_idx",
        fault="as of the function embedding",
        called=_every_overload("embedding"),
        met=_operator_pads,
        instead=_operator_without_padding,
        operators=(torch.ops.aten.embedding.default,),
    ),
    WrongRule(
        operation="roll of a scalar",
        fault="the records are rolled: each gets the value of its neighbour",
        called=_every_overload("roll"),
        met=_is_scalar,
        instead=_clone,
    ),
    WrongRule(
        operation="select_scatter",
        fault="the gradient of src is multiplied by the size of the dimension",
        called=_every_overload("select_scatter"),
        instead=_scatter_slice,
    ),
    WrongRule(
        operation="index_fill with a value that records do not share and an input that they share",
        fault="the values of several records are written over each other, and have no gradient",
        called=_every_overload("index_fill"),
        met=_value_is_tensor,
        instead=_fill_copies,
    ),
    *(
        WrongRule(
            operation=f"{name} of everything",
            fault="where several elements have this value one of them gets the whole gradient, instead of each an equal share",
            called=_every_overload(name),
            met=_reduces_everything,
            instead=_with_tied_gradient(getattr(torch, name)),
        )
        for name in ("max", "min", "median", "nanmedian")
    ),
    WrongRule(
        operation="squeeze_ without a dimension",
        fault="of a micro-batch of one record the dimension of the records is removed too",
        called=_every_overload("squeeze_"),
        met=_without_dimension,
        instead=_squeeze_one_by_one,
    ),
    WrongRule(
        operation="as_strided",
        fault="strides are those of the micro-batch: other records may be read, and of a tensor that is expanded, as the records' "
        "copies of a parameter are, each record gets the mean of the gradients of all",
        called=(*_every_overload("as_strided"), *_every_overload("as_strided_copy")),
    ),
    *(
        WrongRule(operation=name, fault=fault, called=_every_overload(name))
        for name, fault in {
            "as_strided_": "the tensor keeps its shape and values",
            "set_": "the tensor keeps its values",
            "resize_": "the values of all records are laid out anew, over the bounds of records",
            "resize_as_": "the tensor keeps its shape",
        }.items()
    ),
    WrongRule(
        operation="addbmm_ of a tensor that grows by it",
        fault="the tensor keeps its shape",
        called=_every_overload("addbmm_"),
        met=_grows,
    ),
    WrongRule(
        operation="linear_cross_entropy with options",
        fault="it takes the weights for frozen, as they say of themselves under vmap, and gives them no gradient",
        called=(functional.linear_cross_entropy,),
        met=_has_options,
        instead=_without_options,
    ),
    *(
        WrongRule(
            operation=f"Tensor.{attribute}",
            fault=fault,
            called=(getattr(Tensor, attribute).__get__,),
            instead=_read_unwrapped(attribute),
        )
        for attribute, fault in {
            "requires_grad": "it is False for every tensor, so what a module does for the sake of gradients is left out: backward "
            "hooks of modules, `if x.requires_grad: x.register_hook(...)`",
            "grad_fn": "it is None for every tensor",
        }.items()
    ),
    _OWN_GENERATOR,
)
"""Everything that is known to be wrong."""

_BY_FUNCTION = {function: rule for rule in WRONG_RULES for function in rule.called}
_BY_OPERATOR = {operator: rule for rule in WRONG_RULES for operator in rule.operators}


def find_wrong_rule(
    function: Any, arguments: Sequence[Any], named: Mapping[str, Any] | None = None
) -> WrongRule | None:
    """The entry of the table that a call meets: `function` as a `TorchFunctionMode` sees it while `vmap` runs."""
    rule = _BY_FUNCTION.get(function)
    if rule is not None and rule.met(*arguments, **(named or {})):
        return rule
    return _OWN_GENERATOR if named and _OWN_GENERATOR.met(**named) else None


class _FunctionGuard(TorchFunctionMode):
    """Computes what the table has another way for, and refuses the rest of it."""

    def __init__(self) -> None:
        super().__init__()
        self._entered: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _BY_FUNCTION or kwargs:
            rule = find_wrong_rule(func, args, kwargs)
            if rule is not None:
                if rule.instead is None:
                    raise _refusal(rule)
                return rule.instead(*args, **(kwargs or {}))
        if func in TRACEABLE_FORMS:
            found = TRACEABLE_FORMS[func](*args, **(kwargs or {}))
            if found is not NotImplemented:
                return found
        if isinstance(func, (FunctionType, HigherOrderOperator)):
            return self._call_composite(func, types, args, kwargs or {})
        return func(*args, **kwargs) if kwargs else func(*args)

    def _call_composite(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """A function in Python, or an `autograd.Function`. The mode is left while it is handled, and entered again for what it calls."""
        if self._entered and self._entered[-1] is func:  # an operator under its function's name
            return func(*args, **kwargs)
        self._entered.append(func)
        try:
            with self:
                return redispatch_function(func, types, args, kwargs)
        finally:
            self._entered.pop()


class _OperatorGuard(TorchDispatchMode):
    """Refuses what got past: operators that were not called through a function of torch."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rule = _BY_OPERATOR.get(func)
        if rule is not None and rule.met(*args, **(kwargs or {})):
            raise _refusal(rule)
        return func(*args, **kwargs) if kwargs else func(*args)


def _refusal(rule: WrongRule) -> UnsupportedModel:
    return UnsupportedModel(
        f"torch {torch.__version__} computes {rule.operation} wrongly under vmap: {rule.fault}. "
        'Use Execution(engine="loop"), which runs one record after the other, or write it with another operation'
    )


@contextmanager
def guard_batching_rules() -> Iterator[None]:
    """Around a call of `vmap`: what the table has is computed in a way that is right for every record, or refused."""
    with _OperatorGuard(), _FunctionGuard():
        yield


def vmap_records(function: Callable[..., Any], *arguments: Any) -> Any:
    """`function` of every record alone, all at once: every tensor of the arguments and of the results has the records in front.

    What else it returns is the same for all records, because `vmap` runs it once; objects are dropped, as they may hold tensors.
    """
    with warnings.catch_warnings(), guard_batching_rules():
        # Where torch loops over records inside one operator it says so on every call; the result is the same.
        warnings.filterwarnings("ignore", message="There is a performance drop")
        rest: list[Any] = []

        def tensors_only(*record: Any) -> list[Tensor]:
            leaves, structure = tree_flatten(drop_objects(function(*record)))
            rest[:] = structure, [None if isinstance(leaf, Tensor) else (leaf,) for leaf in leaves]
            return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

        rows = iter(vmap(tensors_only, randomness="different")(*arguments))
        structure, others = rest
        return structure.unflatten([next(rows) if other is None else other[0] for other in others])
