"""A plain copy of a model that `fully_shard` has divided: the same modules, each with room for its whole weights.

`fully_shard` exchanges the classes of modules, adds hooks that gather weights, and forbids copies. None of this is in the copy, which is
an ordinary module: it can be probed, traced, copied and run on one rank alone.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

_OWNER = "torch.distributed.fsdp"
_MARKS = ("__composable_api_state_key", "_is_fsdp_managed_module", "_fsdp_use_orig_params")
"""Attributes that `fully_shard` adds to modules."""


def whole_copy(model: nn.Module) -> nn.Module:
    """The model as it was before `fully_shard`, with new parameters without values. Buffers are those of the model itself."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        room = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.to_local().device)  # type: ignore[attr-defined]
        memo[id(parameter)] = nn.Parameter(room, requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = buffer
    for module in model.modules():  # all of them first: a module may know the one around it
        kind = _plain_class(module)
        memo[id(module)] = kind.__new__(kind)
    for module in model.modules():
        memo[id(module)].__setstate__(copy.deepcopy(_own_state(module), memo))
    whole: nn.Module = memo[id(model)]
    return whole


def _plain_class(module: nn.Module) -> type[nn.Module]:
    """The class that a module had before it was sharded."""
    kind = type(module)
    return kind.__mro__[2] if issubclass(kind, FSDPModule) else kind


def _own_state(module: nn.Module) -> dict[str, Any]:
    """What a module holds, without what `fully_shard` put there."""
    state: Mapping[str, Any] = module.__getstate__()
    kept = {name: value for name, value in state.items() if not name.startswith(_MARKS)}
    foreign = {key for value in kept.values() if isinstance(value, dict) for key in value if _is_foreign(value[key])}
    for name, value in kept.items():
        if name.endswith(("_hooks", "_with_kwargs", "_always_called")) and isinstance(value, dict):
            kept[name] = type(value)((key, hook) for key, hook in value.items() if key not in foreign)
    return kept


def _is_foreign(hook: Any) -> bool:
    """Whether a hook belongs to `fully_shard`: its function, or the object whose method it is."""
    function = getattr(hook, "hook", hook)
    owner = getattr(function, "__self__", None)
    place = type(owner).__module__ if owner is not None else getattr(function, "__module__", None)
    return isinstance(place, str) and place.startswith(_OWNER) and callable(function)
