"""Proof that the records of a micro-batch stay apart while an engine runs them together.

The engine itself is followed (`apportion.models.following`), as it is executed: its scratch copy of the model with all that it put
there, the losses of the records, and the backward pass. Every layer whose gradients it takes from inputs and output gradients must get
both with row i of record i alone, in front, and so must every tensor in which autograd leaves gradients of records. This is done with two
numbers of records, which must take the same path.

What a proof rests on: the rules of `apportion.models.record_rules`; kernels of the engine's own, which are tested (recurrences, bags of
embeddings); and that torch's kernels compute what their names say, in which `vmap` is not trusted: it is followed as the operations that it
makes. A proof holds for records of one shape and type, for the training flags of the modules and for the attributes of the model as they
were.

A part of a model that cannot be followed runs one record after the other (`alone`), and a model of which nothing else is left is left to
the reference engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._pytree import tree_leaves

from apportion.curator.gradients.engine import BuiltEngine
from apportion.curator.gradients.losses import LossFunction
from apportion.curator.gradients.one_pass import OnePass
from apportion.curator.gradients.witness import Call
from apportion.curator.tree import map_tensors, tensors_of
from apportion.models.following import FRONT, Followed, Follower, Path, Place, RecordsMeet
from apportion.models.record_rules import places
from apportion.models.synthetic import device_of

_PRIMES = (1283, 1289, 1291, 1297, 1301, 1303, 1307, 1319, 1321, 1327)
"""Beyond the largest micro-batch, so that no branch on a size lies between what is followed and what is run."""


class CannotFollow(Exception):
    """Records meet, or may meet.

    Args:
        reason: a phrase without a full stop.
        module: the innermost module in whose forward pass it was; `None` if it was in the backward pass or in the loss.
        in_loss: whether it was in the loss.
        shared: a call of a layer on something that belongs to no record, if that was the reason.
    """

    def __init__(self, reason: str, module: str | None, *, in_loss: bool = False, shared: Call | None = None):
        super().__init__(reason)
        self.reason, self.module, self.in_loss, self.shared = reason, module, in_loss, shared


class _SharedInput(RecordsMeet):
    def __init__(self, call: Call):
        super().__init__(f"the input of {call[0]}", "it belongs to no record")
        self.call = call


class _Kernel(torch.autograd.Function):
    """Outputs that come from elsewhere, and gradients of the inputs with the places of the inputs."""

    @staticmethod
    def forward(context: Any, witness: _Witness, outputs: Callable[[], tuple[Tensor, ...]], *inputs: Tensor) -> Any:
        context.witness, context.inputs = witness, [(tuple(value.shape), value) for value in inputs]
        made = outputs()
        context.places = [value.place for value in made if isinstance(value, Followed)]
        context.mark_non_differentiable(*(value for value in made if not value.is_floating_point()))
        return made

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        follower: Follower = context.witness.follower
        for gradient, place in zip(gradients, context.places, strict=True):
            if gradient is not None and (not isinstance(gradient, Followed) or gradient.place != place):
                raise follower.refused(RecordsMeet("backward", "a gradient is not that of each record"))
        return (
            None,
            None,
            *(
                context.witness.follower.made(shape, value.place if isinstance(value, Followed) else None, value)
                if needed
                else None
                for (shape, value), needed in zip(context.inputs, context.needs_input_grad[2:], strict=True)
            ),
        )


class _Witness:
    """Checks what the engine is given and hands out, by the places of followed tensors."""

    def __init__(self, follower: Follower, seen_alone: dict[str, list[Any]]):
        self.follower, self._seen_alone = follower, seen_alone

    def require_rows(self, what: str, value: Tensor, dimension: int) -> None:
        if self.follower.known is not None:
            return
        if not isinstance(value, Followed) or value.place != Place(dimension):
            with torch._C.DisableTorchFunction():
                raise self.follower.refused(RecordsMeet(what, "its rows are not records"))
        with torch._C.DisableTorchFunction():
            if value.shape[dimension] != self.follower.records:
                raise self.follower.refused(RecordsMeet(what, "it has several rows of a record"))

    def require_own_input(self, call: Call, value: Tensor) -> None:
        if self.follower.known is None and (not isinstance(value, Followed) or value.place is None):
            raise self.follower.refused(_SharedInput(call))

    def kernel(self, outputs: Callable[[], tuple[Tensor, ...]], *inputs: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = _Kernel.apply(self, outputs, *inputs)
        return found

    def made(self, shape: tuple[int, ...], dimension: int, like: Tensor) -> Tensor:
        return self.follower.made(shape, Place(dimension), like)

    def alone(self, path: str, call: int, inputs: Any) -> Any:
        for value in tensors_of(inputs):
            self.require_rows(f"the input of {path}", value, 0)
        if call >= len(self._seen_alone.get(path, [])):
            raise self.follower.refused(RecordsMeet(path, "it is called a number of times that depends on values"))
        leaves, structure = torch.utils._pytree.tree_flatten(self._seen_alone[path][call])
        where = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

        def outputs() -> tuple[Tensor, ...]:
            return tuple(
                self.follower.made(
                    (self.follower.records, *leaves[i].shape[1:]), FRONT, torch.empty((), dtype=leaves[i].dtype)
                )
                for i in where
            )

        anchor = torch.zeros((), requires_grad=True)
        made = self.kernel(outputs, anchor, *(value for value in tensors_of(inputs) if value.is_floating_point()))
        for index, value in zip(where, made, strict=True):
            leaves[index] = value
        return structure.unflatten(leaves)


Build = Callable[[], BuiltEngine]
"""A new engine for a copy of the model. Copies, because what a model does to itself while it is followed must not stay."""


def follow_engine(
    build: Build, inputs: Any, target: Any, loss_fn: LossFunction | None, trial: Callable[[BuiltEngine], Any]
) -> Path:
    """Follow B records like (inputs, target), for two B, from `engine.forward` to the gradients that are left for each.

    Args:
        inputs, target: one record; of both only shapes and types are used.
        loss_fn: the loss of a record; `None` if it is not known, as in a loop of a person's own.
        trial: runs the engine on real synthetic records, where it has modules that run alone: their outputs' shapes are needed.

    Returns:
        The path that was taken; `CannotFollow` is raised if records may meet.
    """
    try:
        model = build().model
    except Exception as error:
        raise CannotFollow(f"its layers cannot be listened to ({type(error).__name__}: {error})", None) from error
    primes = _usable_primes(model, (inputs, target))
    paths = [_follow(build(), inputs, target, loss_fn, records, trial) for records in primes]
    difference = paths[0].difference(paths[1]) or paths[1].difference(paths[0])
    if difference is not None:
        raise CannotFollow(difference, None)
    return paths[0]


def require_same_path(
    build: Build, inputs: Any, records: int, known: Path, trial: Callable[[BuiltEngine], Any]
) -> None:
    """Raise `CannotFollow` unless the forward pass of so many records takes the path that is known."""
    _follow(build(), inputs, None, None, records, trial, known)


def _usable_primes(model: nn.Module, record: Any) -> tuple[int, int]:
    sizes = {size for tensor in (*model.parameters(), *model.buffers(), *tensors_of(record)) for size in tensor.shape}
    usable = [prime for prime in _PRIMES if all(size % prime or not size for size in sizes)]
    if len(usable) < 2:
        raise CannotFollow("its sizes leave no number of records that could be told from them", None)
    return usable[0], usable[1]


def _follow(
    engine: BuiltEngine,
    inputs: Any,
    target: Any,
    loss_fn: LossFunction | None,
    records: int,
    trial: Callable[[BuiltEngine], Any],
    known: Path | None = None,
) -> Path:
    engine.follow()
    seen: dict[str, list[Any]] = {}
    if isinstance(engine, OnePass) and engine.runs_alone:
        running: list[str] = []
        try:
            with _modules_named(engine, running):
                trial(engine)
        except Exception as error:
            module = running[-1] if running else None
            raise CannotFollow(
                f"a module cannot run record by record ({type(error).__name__}: {error})", module
            ) from error
        seen = engine.seen_alone
    follower = Follower(records, places, device_of(engine.model), known)
    follower.hide(engine.model)
    follower.hide(engine.scratch)
    # targets last: a run that is compared with this one has none
    batch, targets = map_tensors(
        lambda leaf: follower.follow(leaf) if isinstance(leaf, Tensor) else leaf, (inputs, target)
    )
    if isinstance(engine, OnePass):
        engine.witness = _Witness(follower, seen)
    stage = "model"
    try:
        with _modules_named(engine, follower.modules), follower.run():
            outputs = engine.run(batch)
            _require_unchanged(engine, follower)
            if known is not None:
                return follower.path
            _require_front("an output of the model", outputs, follower)
            stage = "loss"
            if loss_fn is None:
                roots = [value for value in tensors_of(outputs) if value.requires_grad]
            else:
                roots = [engine.record_losses(loss_fn, outputs, targets)]
                _require_front("the loss", roots[0], follower)
            stage = "backward pass"
            if roots:
                torch.autograd.backward(roots, [torch.ones_like(value) for value in roots])
            for gradient in _left(engine):
                _require_front("a gradient", gradient, follower)
    except RecordsMeet as error:
        module = follower.refused_in[-1] if follower.refused_in and stage == "model" else None
        shared = error.call if isinstance(error, _SharedInput) else None
        raise CannotFollow(str(error), module, in_loss=stage == "loss", shared=shared) from None
    except Exception as error:  # asked for values, or does not run on such tensors: follow it no further
        module = follower.modules[-1] if follower.modules and stage == "model" else None
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise CannotFollow(
            f"its {stage} does not run without values ({said})", module, in_loss=stage == "loss"
        ) from error
    return follower.path


def _require_unchanged(engine: BuiltEngine, follower: Follower) -> None:
    """What a module writes down while it runs may decide what it does the next time."""
    found = engine.remembered.changed()
    if found is not None:
        names = {id(module): name for name, module in engine.scratch.named_modules()}
        follower.modules[:] = [names[id(found[0])]]
        raise follower.refused(
            RecordsMeet("forward", f"the {found[1]} of {type(found[0]).__name__} changes while the model runs")
        )


def _left(engine: BuiltEngine) -> list[Tensor]:
    if isinstance(engine, OnePass):
        return [leaf.grad for leaf in engine.rows_left() if leaf.grad is not None]
    rows = engine.gradients()
    assert isinstance(rows, dict)
    return list(rows.values())


def _require_front(what: str, tree: Any, follower: Follower) -> None:
    for value in tree_leaves(tree):
        if isinstance(value, Tensor) and (not isinstance(value, Followed) or value.place != FRONT):
            raise follower.refused(RecordsMeet(what, "its rows are not records"))


@contextmanager
def _modules_named(engine: BuiltEngine, running: list[str]) -> Iterator[None]:
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


__all__ = ["CannotFollow", "follow_engine", "require_same_path"]
