"""Proof that the records of a micro-batch stay apart while an engine runs them together.

The engine itself is traced (`record_tracer.py`) as it is executed: its scratch copy of the model with everything that it added, the losses
of the records, and the backward pass. Every layer whose gradients it takes from inputs and output gradients must get
both with row i of record i alone, in front, and so must every tensor in which autograd leaves gradients of records. This is done with two
numbers of records, which must take the same path.

What a proof rests on: the rules of `apportion.models.record_rules`; kernels of the engine's own, which are tested (recurrences, bags of
embeddings); and that torch's kernels compute what their names say, in which `vmap` is not trusted: it is traced as the operations that it
makes. A proof holds for records of one shape and type, for the training flags of the modules and for the attributes of the model as they
were.

A part of a model that cannot be traced runs one record after the other (`alone`); a model that consists of nothing else is left to the
reference engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._pytree import tree_leaves

from apportion.curator.gradients.engine import BuiltEngine, EngineChoice, build_engine
from apportion.curator.gradients.fallback import output_kind
from apportion.curator.gradients.losses import LossFunction
from apportion.curator.gradients.one_pass import LayerCall, OnePass
from apportion.curator.tree import call_model, map_tensors, tensor_leaves
from apportion.models.check import copy_model
from apportion.models.record_rules import apply_rule
from apportion.models.record_tracer import FRONT, Path, Place, RecordsMayMix, RecordTracer, TracedTensor
from apportion.models.rule_registry import place_of
from apportion.models.synthetic import fix_seed, model_device

_PRIMES = (1283, 1289, 1291, 1297, 1301, 1303, 1307, 1319, 1321, 1327)
"""Beyond the largest micro-batch, so that no branch on a size lies between what is traced and what is run."""
_COMPOSITE = 40320
"""8! = 2⁷·3²·5·7, which groups of nearly any size divide, as they divide no prime: what counts in C does not say so (`math.gcd`)."""


class CannotTrace(Exception):
    """Records meet, or may meet.

    Args:
        reason: a phrase without a full stop.
        module: the innermost module in whose forward pass it was; `None` if it was in the backward pass or in the loss.
        in_loss: whether it was in the loss.
        shared: a call of a layer on something that belongs to no record, if that was the reason.
    """

    def __init__(self, reason: str, module: str | None, *, in_loss: bool = False, shared: LayerCall | None = None):
        super().__init__(reason)
        self.reason, self.module, self.in_loss, self.shared = reason, module, in_loss, shared


class _SharedInput(RecordsMayMix):
    def __init__(self, call: LayerCall):
        super().__init__(f"the input of {call[0]}", "it belongs to no record")
        self.call = call


class _TrustedKernel(torch.autograd.Function):
    """Outputs that come from elsewhere, and gradients of the inputs with the places of the inputs."""

    @staticmethod
    def forward(
        context: Any, checker: _TracingChecker, outputs: Callable[[], tuple[Tensor, ...]], *inputs: Tensor
    ) -> Any:
        context.checker, context.inputs = checker, [(tuple(value.shape), value) for value in inputs]
        made = outputs()
        context.places = [value.place for value in made if isinstance(value, TracedTensor)]
        context.mark_non_differentiable(*(value for value in made if not value.is_floating_point()))
        return made

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        tracer: RecordTracer = context.checker.tracer
        for gradient, place in zip(gradients, context.places, strict=True):
            if tracer.known is None and gradient is not None and place_of(gradient) != place:
                raise tracer.refuse("backward", "a gradient is not that of each record")
        needed = context.needs_input_grad[2:]
        made = [
            tracer.make_traced(shape, place_of(value), value) if wanted else None
            for (shape, value), wanted in zip(context.inputs, needed, strict=True)
        ]
        return None, None, *made


class _TracingChecker:
    """Checks what the engine is given and hands out, by the places of traced tensors."""

    def __init__(self, tracer: RecordTracer, seen_alone: dict[str, list[Any]]):
        self.tracer, self._outputs_alone = tracer, seen_alone

    def require_rows(self, what: str, value: Tensor, dimension: int) -> None:
        if self.tracer.known is not None:
            return
        with torch._C.DisableTorchFunction():
            if not isinstance(value, TracedTensor) or value.place != Place(dimension):
                raise self.tracer.refuse(what, "its rows are not records")
            if value.shape[dimension] != self.tracer.records:
                raise self.tracer.refuse(what, "it has several rows of a record")

    def require_own_input(self, call: LayerCall, value: Tensor) -> None:
        if self.tracer.known is None and place_of(value) is None:
            raise self.tracer.record_refusal(_SharedInput(call))

    def replace_kernel(self, outputs: Callable[[], tuple[Tensor, ...]], *inputs: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = _TrustedKernel.apply(self, outputs, *inputs)
        return found

    def make_traced(self, shape: tuple[int, ...], dimension: int, like: Tensor) -> Tensor:
        return self.tracer.make_traced(shape, Place(dimension), like)

    def output_alone(self, path: str, call: int, inputs: Any) -> Any:
        for value in tensor_leaves(inputs):
            self.require_rows(f"the input of {path}", value, 0)
        if call >= len(self._outputs_alone.get(path, [])):
            raise self.tracer.refuse(path, "it is called a number of times that depends on values")
        leaves, structure = torch.utils._pytree.tree_flatten(self._outputs_alone[path][call])
        where = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

        def outputs() -> tuple[Tensor, ...]:
            return tuple(
                self.tracer.make_traced(
                    (self.tracer.records, *leaves[i].shape[1:]), FRONT, torch.empty((), dtype=leaves[i].dtype)
                )
                for i in where
            )

        anchor = torch.zeros((), requires_grad=True)
        made = self.replace_kernel(
            outputs, anchor, *(value for value in tensor_leaves(inputs) if value.is_floating_point())
        )
        for index, value in zip(where, made, strict=True):
            leaves[index] = value
        return structure.unflatten(leaves)


@dataclass(frozen=True)
class TraceExample:
    """What is traced through an engine.

    Args:
        inputs, target: one record; of both only shapes and types are used.
        loss_fn: the loss of a record; `None` if it is not known, as in a loop of a person's own.
        records: inputs of synthetic records on which the model runs. Modules that run alone run on them: the shapes of their outputs are
            needed.
    """

    inputs: Any
    target: Any = None
    loss_fn: LossFunction | None = None
    records: Any = None


def trace_engine(model: nn.Module, choice: EngineChoice, example: TraceExample) -> Path:
    """Trace B records, for two B, from `engine.forward` to the gradients that are left for each. Where nothing looks at B, as far as can be
    noticed, the path of a third B, which is no prime, must be the same too.

    Returns:
        The path that was taken; `CannotTrace` is raised if records may mix.
    """
    primes = _choose_primes(model, (example.inputs, example.target))
    paths = [_trace(model, choice, example, records) for records in primes]
    difference = paths[0].find_difference(paths[1]) or paths[1].find_difference(paths[0])
    if difference is not None:
        raise CannotTrace(difference, None)
    if not paths[0].looks_at_count:
        _trace(model, choice, example, _COMPOSITE, paths[0])
    return paths[0]


def trace_forward(model: nn.Module, inputs: Any) -> None:
    """Trace B records, for two B, through the forward pass of a model that is not trained, in its present mode.

    What it remembers from one batch to the next is not seen here: restore its state between them.

    Raises:
        CannotTrace: if records may mix, or if the model looks at how many there are.
    """
    paths = []
    for records in _choose_primes(model, inputs):
        subject = copy_model(model)
        tracer = RecordTracer(records, apply_rule, model_device(subject))
        tracer.hide_weights(subject)
        batch = map_tensors(lambda leaf, tracer=tracer: tracer.trace_batch(leaf), inputs)
        try:
            with torch.no_grad(), tracer.run():
                _require_front("an output of the model", call_model(subject, batch), tracer)
        except Exception as error:  # records meet, a value is asked for, or it does not run on such tensors
            raise CannotTrace(f"{type(error).__name__}: {error}".splitlines()[0], None) from error
        if tracer.path.looks_at_count:
            raise CannotTrace("it looks at the number of records", None)
        paths.append(tracer.path)
    difference = paths[0].find_difference(paths[1]) or paths[1].find_difference(paths[0])
    if difference is not None:
        raise CannotTrace(difference, None)


def require_same_control_flow(
    model: nn.Module, choice: EngineChoice, example: TraceExample, records: int, known: Path
) -> None:
    """Raise `CannotTrace` unless the forward pass of so many records takes the path that is known."""
    _trace(model, choice, example, records, known, forward_only=True)


def _choose_primes(model: nn.Module, record: Any) -> tuple[int, int]:
    sizes = {
        size for tensor in (*model.parameters(), *model.buffers(), *tensor_leaves(record)) for size in tensor.shape
    }
    usable = [prime for prime in _PRIMES if all(size % prime or not size for size in sizes)]
    if len(usable) < 2:
        raise CannotTrace("its sizes leave no number of records that could be told from them", None)
    return usable[0], usable[1]


def _trace(
    model: nn.Module,
    choice: EngineChoice,
    example: TraceExample,
    records: int,
    known: Path | None = None,
    *,
    forward_only: bool = False,
) -> Path:
    """The path of so many records; compared with the `known` one, if there is one."""
    engine = _build(model, choice)
    outputs_alone = _run_modules_alone(engine, example.records)
    tracer = RecordTracer(records, apply_rule, model_device(engine.model), known)
    tracer.hide_weights(engine.model)
    tracer.hide_weights(engine.scratch)
    # targets last: a run that is compared with this one has none
    batch, targets = map_tensors(
        lambda leaf: tracer.trace_batch(leaf) if isinstance(leaf, Tensor) else leaf, (example.inputs, example.target)
    )
    if isinstance(engine, OnePass):
        engine.checker = _TracingChecker(tracer, outputs_alone)
    loss_fn = example.loss_fn if choice.losses_together else None
    try:
        with _name_running_modules(engine, tracer.modules), tracer.run():
            _run_passes(engine, tracer, batch, targets, loss_fn, forward_only)
    except RecordsMayMix as error:
        module = tracer.refused_in[-1] if tracer.refused_in and tracer.stage == "model" else None
        shared = error.call if isinstance(error, _SharedInput) else None
        raise CannotTrace(str(error), module, in_loss=tracer.stage == "loss", shared=shared) from None
    except Exception as error:  # asked for values, or does not run on such tensors: trace it no further
        module = tracer.modules[-1] if tracer.modules and tracer.stage == "model" else None
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise CannotTrace(
            f"its {tracer.stage} does not run without values ({said})", module, in_loss=tracer.stage == "loss"
        ) from error
    tracer.path.alone_outputs = {path: [output_kind(one) for one in calls] for path, calls in outputs_alone.items()}
    return tracer.path


def _build(model: nn.Module, choice: EngineChoice) -> BuiltEngine:
    """An engine for a copy of the model: what a model does to itself while it is traced must not stay."""
    try:
        engine = build_engine(copy_model(model), choice)
    except Exception as error:
        raise CannotTrace(f"its layers cannot be instrumented ({type(error).__name__}: {error})", None) from error
    engine.sync_weights()
    return engine


def _run_modules_alone(engine: BuiltEngine, records: Any) -> dict[str, list[Any]]:
    """What the modules that run one record after the other return: shapes and types by module and call."""
    if not isinstance(engine, OnePass) or not engine.alone:
        return {}
    running: list[str] = []
    try:
        with _name_running_modules(engine, running), fix_seed(0, model_device(engine.model)):
            engine.forward(map_tensors(torch.clone, records))
    except Exception as error:
        module = running[-1] if running else None
        raise CannotTrace(f"a module cannot run record by record ({type(error).__name__}: {error})", module) from error
    return engine.outputs_alone


def _run_passes(
    engine: BuiltEngine,
    tracer: RecordTracer,
    batch: Any,
    targets: Any,
    loss_fn: LossFunction | None,
    forward_only: bool,
) -> None:
    """The forward pass, the losses and the backward pass, each of which must leave the records in front."""
    outputs = engine.run(batch)
    _require_unchanged(engine, tracer)
    if forward_only:
        return
    _require_front("an output of the model", outputs, tracer)
    tracer.stage = "loss"
    if loss_fn is None:
        roots = [value for value in tensor_leaves(outputs) if value.requires_grad]
    else:
        roots = [engine.record_losses(loss_fn, outputs, targets)]
        _require_front("the loss", roots[0], tracer)
    tracer.stage = "backward pass"
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(value) for value in roots])
    for gradient in _leaf_gradients(engine):
        _require_front("a gradient", gradient, tracer)


def _require_unchanged(engine: BuiltEngine, tracer: RecordTracer) -> None:
    """What a module writes down while it runs may decide what it does the next time."""
    found = engine.module_state.find_change()
    if found is not None:
        names = {id(module): name for name, module in engine.scratch.named_modules()}
        tracer.modules[:] = [names[id(found[0])]]
        raise tracer.refuse("forward", f"the {found[1]} of {type(found[0]).__name__} changes while the model runs")


def _leaf_gradients(engine: BuiltEngine) -> list[Tensor]:
    if isinstance(engine, OnePass):
        return [leaf.grad for leaf in engine.row_leaves() if leaf.grad is not None]
    rows = engine.gradients()
    assert isinstance(rows, dict)
    return list(rows.values())


def _require_front(what: str, tree: Any, tracer: RecordTracer) -> None:
    """In a run that is compared with another one nothing has a place: what that one showed holds."""
    for value in tree_leaves(tree) if tracer.known is None else ():
        if isinstance(value, Tensor) and place_of(value) != FRONT:
            raise tracer.refuse(what, "its rows are not records")


@contextmanager
def _name_running_modules(engine: BuiltEngine, running: list[str]) -> Iterator[None]:
    """Write down which modules of the scratch copy are running."""
    names = {id(module): name for name, module in engine.scratch.named_modules()}

    def enter(module: nn.Module, _: Any) -> None:
        if id(module) in names:
            running.append(names[id(module)])

    def leave(module: nn.Module, *_: Any) -> None:
        if id(module) in names and running:
            running.pop()

    hooks = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


__all__ = ["CannotTrace", "TraceExample", "require_same_control_flow", "trace_engine", "trace_forward"]
