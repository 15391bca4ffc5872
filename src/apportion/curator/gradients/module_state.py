"""The state of a model's modules: restored between micro-batches, and its structure, which must not change during a run.

A module may store numbers, tensors or anything else in attributes, in buffers that it creates or replaces, in hooks or children that it
adds, in lists, dicts and sets, in arrays of NumPy, in attributes of objects: a running mean, the last hidden state, a table that grows, a
cache. With these, the records of one micro-batch would reach the gradients of another, bypassing clipping, or end a run that would not have
ended without them.
Changes inside objects of the standard library other than containers are not undone, nor are attributes of scripted modules.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable
from itertools import repeat
from operator import is_
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from apportion.curator.gradients.model_walk import Found, ModelWalk
from apportion.errors import WrongOrder

_CONTAINERS = (list, tuple, set, dict, deque)
_STANDARD_ATTRIBUTES = frozenset(vars(nn.Module()))
_MISSING = object()
T = TypeVar("T")


class ModuleState:
    """A snapshot of all modules of a model: attributes, children, buffers and hooks; not `training`, nor the values of parameters."""

    def __init__(self, model: nn.Module):
        self._modules = [(module, _attributes(module)) for module in model.modules()]
        self._registers = [
            (register, dict(register))
            for _, attributes in self._modules
            for name, register in attributes.items()
            if name in _STANDARD_ATTRIBUTES and isinstance(register, dict)
        ]
        self._containers: list[tuple[nn.Module, Any, Any]] = []
        self._buffers: list[tuple[nn.Module, Any, Any]] = []
        self._slots: list[tuple[nn.Module, Any, dict[str, Any]]] = []
        plain: list[Tensor] = []
        seen: set[int] = set()
        for module, attributes in self._modules:
            own = (value for name, value in attributes.items() if name not in _STANDARD_ATTRIBUTES)
            self._collect(module, own, plain, seen)
        # an attribute may be another view of a weight, which moves
        weights = {_storage_address(parameter) for parameter in model.parameters()}
        tensors = [tensor for tensor in (*plain, *model.buffers()) if _storage_address(tensor) not in weights]
        self._tensors = [(tensor, tensor.detach(), tensor.detach().clone()) for tensor in tensors]

    def _collect(self, owner: nn.Module, values: Iterable[Any], tensors: list[Tensor], seen: set[int]) -> None:
        """Note tensors and containers, and what is in these."""
        for value in values:
            if isinstance(value, Tensor):
                tensors.append(value)
                continue
            if isinstance(value, (nn.Module, type, str, bytes, int, float, type(None))) or id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, _CONTAINERS):
                if not isinstance(value, tuple):
                    self._containers.append((owner, value, _content(value)))
                self._collect(owner, value.values() if isinstance(value, dict) else value, tensors, seen)
            elif isinstance(value, (np.ndarray, bytearray)):
                self._buffers.append((owner, value, value.copy()))
            if _has_attributes(value):
                self._collect(owner, [vars(value)], tensors, seen)
            if slots := _slots_of(value):
                self._slots.append((owner, value, slots))
                self._collect(owner, slots.values(), tensors, seen)

    def find_change(self) -> tuple[nn.Module, str] | None:
        """The module and the name of the first attribute that has changed; `None` if none has."""
        for module, before in self._modules:
            now = vars(module)
            if len(now) == len(before) + ("training" in now) and all(
                map(is_, map(now.get, before, repeat(_MISSING)), before.values())
            ):
                continue
            now = _attributes(module)
            for name in now.keys() | before.keys():
                if now.get(name, _MISSING) is not before.get(name, _MISSING) and not _equal(
                    now.get(name, _MISSING), before.get(name, _MISSING)
                ):
                    return module, f"attribute {name}"
        for module, container, content in self._containers:
            if not _same_items(container, content) and (
                len(container) != len(content) or not all(map(_equal, _items(container), _items(content)))
            ):
                return module, f"{type(container).__name__} in an attribute"
        for module, buffer, before_bytes in self._buffers:
            if not _same_bytes(buffer, before_bytes):
                return module, f"{type(buffer).__name__} in an attribute"
        for module, value, slots in self._slots:
            if not all(_equal(getattr(value, name, _MISSING), before) for name, before in slots.items()):
                return module, f"{type(value).__name__} in an attribute"
        return None

    def restore(self) -> None:
        """Restore the snapshot. Raises if a tensor was changed too much for that; then a new copy of the model is needed."""
        for module, before in self._modules:
            now = vars(module)
            now.update(before)
            if len(now) > len(before) + ("training" in now):
                for name in now.keys() - before.keys() - {"training"}:
                    del now[name]
        for register, content in self._registers:
            if not (register or content):  # most are for hooks that nobody has
                continue
            if len(register) != len(content) or not all(
                map(is_, map(register.get, content, repeat(_MISSING)), content.values())
            ):
                register.clear()
                register.update(content)
        for _, container, content in self._containers:
            if not _same_items(container, content):
                container.clear()
                (container.update if isinstance(container, (dict, set)) else container.extend)(content)
        for _, buffer, before_bytes in self._buffers:
            if not _same_bytes(buffer, before_bytes):
                _write_bytes(buffer, before_bytes)
        for _, value, slots in self._slots:
            for name, before_value in slots.items():
                if before_value is _MISSING:
                    if hasattr(value, name):
                        delattr(value, name)
                elif getattr(value, name, _MISSING) is not before_value:
                    object.__setattr__(value, name, before_value)
        if not self._tensors:
            return
        with torch.no_grad():
            for tensor, room, values in self._tensors:
                if _storage_address(tensor) != _storage_address(room) or tensor.shape != room.shape:
                    tensor.data = room
                if not torch.equal(room, values):  # autograd may have kept what was not written to
                    room.copy_(values)


class StatelessLoss:
    """A loss that is a module: its state is restored before every call, so that nothing of one record reaches the next."""

    def __init__(self, loss: nn.Module):
        self.loss, self._state = loss, ModuleState(loss)
        self._found: dict[Callable[[nn.Module], Any], Any] = {}

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        value: Tensor = self.restored()(outputs, targets)
        return value

    def restored(self) -> nn.Module:
        """The loss as it was at the beginning."""
        self._state.restore()
        return self.loss

    def find(self, look: Callable[[nn.Module], T]) -> T:
        """What `look` finds in the loss as it was at the beginning. It is looked for once, as that does not change."""
        if look not in self._found:
            self._found[look] = look(self.restored())
        found: T = self._found[look]
        return found


def _is_somebodys(value: Any) -> bool:
    """Whether it is an object of somebody's own class, or a container of the standard library."""
    kind = type(value)
    known = kind.__module__.partition(".")[0] in sys.stdlib_module_names
    return not known or kind is SimpleNamespace or kind.__module__ == "collections"


def _has_attributes(value: Any) -> bool:
    return hasattr(value, "__dict__") and _is_somebodys(value)


def _slots_of(value: Any) -> dict[str, Any]:
    """What the slots of an object hold."""
    if not _is_somebodys(value):
        return {}
    names: list[str] = []
    for kind in type(value).__mro__:
        own = vars(kind).get("__slots__", ())
        for name in (own,) if isinstance(own, str) else own:
            hidden = name.startswith("__") and not name.endswith("__")
            names.append(f"_{kind.__name__.lstrip('_')}{name}" if hidden else name)
    return {name: getattr(value, name, _MISSING) for name in names if name not in ("__dict__", "__weakref__")}


def _content(container: Any) -> Any:
    """A copy of what a container holds, by the container itself and not by what somebody's class makes of it."""
    return (
        dict(container)
        if isinstance(container, dict)
        else set(container)
        if isinstance(container, set)
        else list(container)
    )


def _same_bytes(buffer: Any, before: Any) -> bool:
    if isinstance(buffer, bytearray):
        return buffer == bytearray(before)
    same_kind = bool(buffer.shape == before.shape and buffer.dtype == before.dtype)
    return same_kind and bool(buffer.tobytes() == before.tobytes())


def _write_bytes(buffer: Any, before: Any) -> None:
    if isinstance(buffer, bytearray):
        buffer[:] = before
        return
    if buffer.shape != before.shape:
        buffer.resize(before.shape, refcheck=False)
    np.copyto(buffer, before)


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name != "training"}


def _items(container: Any) -> list[Any]:
    return [part for pair in container.items() for part in pair] if isinstance(container, dict) else list(container)


def _same_items(container: Any, content: Any) -> bool:
    """Whether these hold the same objects in the same order."""
    if len(container) != len(content) or not all(map(is_, container, content)):
        return False
    return not isinstance(container, dict) or all(map(is_, container.values(), content.values()))


def _equal(one: Any, other: Any) -> bool:
    """The same object, or the same number or text."""
    return one is other or (
        type(one) is type(other) and isinstance(one, (int, float, str, bool, bytes)) and one == other
    )


def _storage_address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else id(tensor)


def _learning(found: Found) -> dict[str, bool]:
    """Which parameters learn."""
    return {name: parameter.requires_grad for name, parameter in found.parameters.items()}


_REMEDY = (
    "Change the model before the private run begins, or end this run and begin another one for the rest of the budget"
)


class ModelStructure:
    """Which modules a model is made of, and which of its parameters learn. Values may change, this may not."""

    def __init__(self, walk: ModelWalk):
        self._walk, self._found = walk, walk.find()
        self._learns = _learning(self._found)

    def require_same(self) -> Found:
        """What the model is made of. Refuses one that was rebuilt since: the copy inside the engine would not have the change."""
        found = self._walk.find()
        before, modules = self._found.modules, found.modules
        for path in {**before, **modules} if found is not self._found else ():
            if before.get(path) is not modules.get(path):
                done = "added" if path not in before else "replaced" if path in modules else "removed"
                raise WrongOrder(f"the module {path!r} was {done} after the private run had begun. {_REMEDY}")
        learns = _learning(found)
        if learns == self._learns:
            return found
        for name in self._learns | learns:
            if self._learns.get(name) != learns.get(name):
                done = {True: "made to learn", False: "frozen", None: "removed"}[learns.get(name)]
                raise WrongOrder(f"the parameter {name!r} was {done} after the private run had begun. {_REMEDY}")
        return found
