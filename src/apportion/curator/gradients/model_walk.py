"""The modules, parameters and buffers of a model, found once, and again only if the model was rebuilt.

torch finds them by recursion at every call, which takes longer than a small step. Whether anything was added, removed, replaced or renamed
since is seen without recursion: every module keeps its children, parameters and buffers in registers of its own, and these must hold the
same objects under the same names in the same order. What can change without that (values, training flags, which parameters learn) is read
anew at every call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_REGISTERS = ("_modules", "_parameters", "_buffers")
_FINDERS = (
    *("modules", "named_modules", "children", "named_children", "_named_members"),
    *("parameters", "named_parameters", "buffers", "named_buffers"),
)


class Found(NamedTuple):
    """What a walk through a model finds. Not to be changed."""

    modules: Mapping[str, nn.Module]
    parameters: Mapping[str, nn.Parameter]
    """Each once, also if it is tied."""
    buffers: Sequence[Tensor]


class ModelWalk:
    """Finds the parts of `model` as it is at each call."""

    def __init__(self, model: nn.Module):
        self.model = model
        self._walk()

    def find(self) -> Found:
        """All parts, whether or not they learn. The same object as long as there are the same parts."""
        if not self._is_same():
            self._walk()
        return self._found

    def training_flags(self) -> tuple[bool, ...]:
        """Of all modules, in the order of the model."""
        return tuple([module.training for module in self.find().modules.values()])

    def _walk(self) -> None:
        model = self.model
        self._found = Found(dict(model.named_modules()), _parameters(model), list(model.buffers()))
        modules = self._found.modules.values()
        self._watched = all(map(_is_watchable, modules))
        self._registers = [
            (own, name, register, [*register], [*map(id, register.values())])
            for own in map(vars, modules if self._watched else ())
            for name in _REGISTERS
            for register in [own[name]]
        ]

    def _is_same(self) -> bool:
        if not self._watched:
            return False
        for own, name, register, names, identities in self._registers:
            if own[name] is not register:
                return False
            # what was found is kept, so that nothing else can have its identity
            if (register or names) and ([*register] != names or [*map(id, register.values())] != identities):
                return False
        return True


def trained_parameters(model: nn.Module | ModelWalk | Found) -> dict[str, nn.Parameter]:
    """The parameters that learn, each once even if it is tied, in the order of the model."""
    found: Mapping[str, nn.Parameter]
    if isinstance(model, Found):
        found = model.parameters
    else:
        found = model.find().parameters if isinstance(model, ModelWalk) else _parameters(model)
    return {name: parameter for name, parameter in found.items() if parameter.requires_grad}


def devices_of(found: Found) -> set[torch.device]:
    """Where the parameters and buffers of a model are."""
    return {tensor.device for tensor in (*found.parameters.values(), *found.buffers)}


def _parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return dict(model.named_parameters())


def _is_watchable(module: nn.Module) -> bool:
    """Whether a module keeps its parts as torch's modules do, and says so in the same way."""
    kind, own = type(module), vars(module)
    plain: Any = (dict, OrderedDict)
    return all(type(own.get(name)) in plain for name in _REGISTERS) and not any(
        name in own or getattr(kind, name) is not getattr(nn.Module, name) for name in _FINDERS
    )
