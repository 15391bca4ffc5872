"""Everything about a run that may be seen, as short texts that can be compared bit by bit."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from apportion.training.session import Session

State = dict[str, str]
"""Path of a value → its text: the value itself, or a digest of a tensor's bytes."""

_TORCH_OWN = frozenset(vars(nn.Module()))  # hooks and registries; parameters and buffers are taken by name


def public_state(session: Session) -> State:
    """Weights, buffers and whatever else modules remember, optimiser, scheduler, strategies, plan and history. Of a model that is divided
    between ranks the parts of this one, and the weights that were gathered from all.

    Of `train` also torch's global generator, from which public decisions may be drawn; a loop of a person's own may use it up.
    """
    state: State = {}
    content = {**session.state(), "plan": session.plan, "history": session.entries}
    content["buffers"] = dict(session.model.named_buffers())  # state_dict leaves out those that are not saved
    content["modules"] = {
        name: {key: value for key, value in vars(module).items() if key not in _TORCH_OWN}
        for name, module in session.model.named_modules()
    }
    if session.weights.shapes is not None:
        content["gathered"] = dict(session.model.named_parameters())
    if not session.own_loop:
        content["generator"] = torch.get_rng_state()
    _write(state, "", content, frozenset())
    return state


def differences(one: State, other: State) -> list[str]:
    """The paths at which two states are not the same."""
    return [path for path in {**one, **other} if one.get(path) != other.get(path)]


def _write(state: State, path: str, value: Any, above: frozenset[int]) -> None:
    """Write `value` and what it holds into `state`. `above` are the objects that hold it, so that circles end."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic)):
        state[path] = repr(value)  # of a float the shortest text that gives the same float again
        return
    if id(value) in above:
        return
    above |= {id(value)}
    if isinstance(value, Tensor):
        value = value.to_local() if hasattr(value, "to_local") else value
        if value.is_meta:
            state[path] = "with another rank"
            return
        raw = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        state[path] = f"{value.dtype} {tuple(value.shape)} {_digest(raw)}"
    elif isinstance(value, np.ndarray):
        state[path] = f"{value.dtype} {value.shape} {_digest(value.tobytes())}"
    elif isinstance(value, Mapping):
        state[path] = f"{len(value)} entries"
        for key, inner in value.items():
            _write(state, f"{path}.{key}" if path else str(key), inner, above)
    elif isinstance(value, (list, tuple)):
        state[path] = f"{len(value)} items"
        for index, inner in enumerate(value):
            _write(state, f"{path}[{index}]", inner, above)
    elif isinstance(value, (set, frozenset)):
        state[path] = repr(sorted(map(repr, value)))
    elif isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        state[path] = value.__qualname__
    else:
        state[path] = type(value).__qualname__
        fields = (
            {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
            if dataclasses.is_dataclass(value)
            else getattr(value, "__dict__", {})
        )
        for key, inner in fields.items():
            _write(state, f"{path}.{key}", inner, above)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
