"""Operations that `torch.func.vmap` gets wrong without saying so, and a guard around a call of `vmap`.

`vmap` replaces every operation by one on the whole micro-batch, by a rule that torch has for it. Where there is no rule it says so, and
a slower engine is used. But some rules are wrong: a record's gradient then depends on its place in the micro-batch and on its
neighbours, and is not the gradient that is clipped. `WRONG` is the table of those that were found by comparing, operation by
operation, with records alone (`tests/curator/test_batching_rules.py`, which also notices when torch mends one).

    with no_wrong_batching_rules():
        outputs = vmap(alone, randomness="different")(copies, inputs)

runs the operations of the table in another way, that has right rules, or refuses the model. Functions of torch are met where they are
called (`TorchFunctionMode`); operators that reach the kernels by another way, as those of a scripted function do, are met there and
refused (`TorchDispatchMode`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from apportion.errors import UnsupportedModel


@dataclass(frozen=True)
class WrongRule:
    """One operation whose batching rule is wrong.

    Args:
        operation: its name, for people, with the condition under which the rule is wrong.
        fault: what goes wrong, in one sentence.
        seen: versions of torch that have the fault.
        functions: as `TorchFunctionMode` sees them; for each whether a call meets the condition.
        operators: as they reach the kernels, after batching; for each whether a call meets the condition.
        instead: for each function, how to compute the same with rules that are right; a function without is refused.
    """

    operation: str
    fault: str
    seen: tuple[str, ...]
    functions: Mapping[Any, Callable[..., bool]]
    operators: Mapping[Any, Callable[..., bool]]
    instead: Mapping[Any, Callable[..., Any]]


def _embedding(
    indices: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """`torch.nn.functional.embedding` with a padding_idx: rows of padding have the same values and no gradient."""
    assert padding_idx is not None
    padding = padding_idx % weight.size(0)
    rows = functional.embedding(indices, weight, None, max_norm, norm_type, scale_grad_by_freq, sparse)
    return torch.where((indices == padding).unsqueeze(-1), rows.detach(), rows)


def _embedding_operator(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """`torch.embedding`, which has its first two arguments the other way round."""
    return _embedding(indices, weight, padding_idx, None, 2.0, scale_grad_by_freq, sparse)


def _function_pads(indices: Tensor, weight: Tensor, padding_idx: int | None = None, *_: Any, **__: Any) -> bool:
    return padding_idx is not None and -weight.size(0) <= padding_idx < weight.size(0)


def _operator_pads(weight: Tensor, indices: Tensor, padding_idx: int = -1, *_: Any, **__: Any) -> bool:
    return padding_idx >= 0


WRONG: tuple[WrongRule, ...] = (
    WrongRule(
        operation="embedding with padding_idx",
        fault="the tables of all records are put one below the other and only row padding_idx of the first is padding, so the other "
        "records' padding rows get a gradient",
        seen=("2.13.0",),
        functions={
            functional.embedding: _function_pads,
            torch.embedding: _operator_pads,
            torch.ops.aten.embedding: _operator_pads,
            torch.ops.aten.embedding.default: _operator_pads,
        },
        operators={torch.ops.aten.embedding.default: _operator_pads},
        instead={
            functional.embedding: _embedding,
            torch.embedding: _embedding_operator,
            torch.ops.aten.embedding: _embedding_operator,
            torch.ops.aten.embedding.default: _embedding_operator,
        },
    ),
)
"""Every wrong rule that is known."""

_BY_FUNCTION = {function: rule for rule in WRONG for function in rule.functions}
_BY_OPERATOR = {operator: rule for rule in WRONG for operator in rule.operators}


def wrong_rule(called: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> WrongRule | None:
    """The entry of the table that this call meets: `called` as a `TorchFunctionMode` sees it while `vmap` runs."""
    rule = _BY_FUNCTION.get(called)
    return rule if rule is not None and rule.functions[called](*args, **(kwargs or {})) else None


class _InAnotherWay(TorchFunctionMode):
    """Computes what the table has another way for, and refuses the rest of it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _BY_FUNCTION:
            rule = wrong_rule(func, args, kwargs)
            if rule is not None:
                if func not in rule.instead:
                    raise _refusal(rule)
                func = rule.instead[func]
        return func(*args, **kwargs) if kwargs else func(*args)


class _AtTheKernels(TorchDispatchMode):
    """Refuses what got past: operators of the table that were not called through a function of torch."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rule = _BY_OPERATOR.get(func)
        if rule is not None and rule.operators[func](*args, **(kwargs or {})):
            raise _refusal(rule)
        return func(*args, **kwargs) if kwargs else func(*args)


def _refusal(rule: WrongRule) -> UnsupportedModel:
    return UnsupportedModel(
        f"torch {torch.__version__} has no right batching rule for {rule.operation}: {rule.fault}. "
        'Use Execution(engine="loop"), which runs one record after the other'
    )


@contextmanager
def no_wrong_batching_rules() -> Iterator[None]:
    """Around a call of `vmap`: its operations are right for every record, or `UnsupportedModel` is raised."""
    with _AtTheKernels(), _InAnotherWay():
        yield
