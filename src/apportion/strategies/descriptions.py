"""Strategies as data: what stands in a plan's JSON, in TOML files, in statements and in results."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from apportion import validate
from apportion.errors import InvalidArgument

_OURS = "apportion.strategies."
_MEMBERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "clip": (("init", "propose", "observe"),),
    "noise": (("relative",), ("init", "choose", "observe")),
    "update": (("init", "transform", "observe"), ("init", "move", "learning_rate")),
    "people": (("solve",),),
    "model": (("scale", "temperature", "offset"),),
}
"""What a class must have to fill a role (`roles.py`): one of these."""


def describe(strategy: Any) -> dict[str, Any]:
    """A strategy as data: its kind and its public hyper-parameters. A kind that is not ours is called `module:Class`."""
    kind = type(strategy)
    parameters = (
        {one.name: _described(getattr(strategy, one.name)) for one in fields(strategy)} if _is_data(strategy) else {}
    )
    name = kind.__qualname__ if kind.__module__.startswith(_OURS) else f"{kind.__module__}:{kind.__qualname__}"
    return {"kind": name, **json.loads(json.dumps(parameters, default=str))}


def build(role: str, description: Any) -> Any:
    """The strategy that `describe` was given.

    Args:
        role: "clip", "noise", "update", "people" or "model"; built-in kinds are looked up there.
        description: {"kind": ..., and its hyper-parameters}. A kind with a colon, `module:Class`, is imported.
    """
    if not isinstance(description, Mapping) or not isinstance(description.get("kind"), str):
        raise InvalidArgument(
            role, validate.shown(description), "it does not say which kind of strategy it is", 'Write {"kind": "Fixed"}'
        )
    kind = _find(role, description["kind"])
    try:
        return kind(**{name: as_parameter(role, value) for name, value in description.items() if name != "kind"})
    except TypeError as error:  # of a parameter that the kind does not have
        raise InvalidArgument(role, description["kind"], str(error), "Correct its hyper-parameters") from None


def parameters_of(role: str, kind: str) -> tuple[str, ...]:
    """The hyper-parameters of a kind of strategy, by name."""
    found = _find(role, kind)
    return tuple(one.name for one in fields(found)) if is_dataclass(found) else ()


def _find(role: str, name: str) -> Any:
    if ":" not in name:
        module = importlib.import_module("apportion.strategies.tempering" if role == "model" else _OURS + role)
        kinds = {key: one for key in module.__all__ if is_dataclass(one := getattr(module, key))}
        return kinds[
            validate.known(f"{role}.kind", name, kinds, "there is no such strategy; module:Class names your own")
        ]
    module_name, _, class_name = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module_name)
        for part in class_name.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever the person's module does while it is imported
        raise InvalidArgument(
            f"{role}.kind", name, f"it cannot be imported: {error}", "Name an importable module and a class in it"
        ) from error
    return _require_strategy(role, name, found)


def _require_strategy(role: str, name: str, found: Any) -> Any:
    """Only a class that has the members of the role is called: a file must not choose what else is run, as `os:system` would be."""
    kinds = _MEMBERS[role]
    if not isinstance(found, type) or not any(all(hasattr(found, member) for member in kind) for kind in kinds):
        raise InvalidArgument(
            f"{role}.kind",
            name,
            f"it is not {'an' if role == 'update' else 'a'} {role} strategy, which is a class with "
            f"{', or '.join(', '.join(kind) for kind in kinds)}",
            "Name a class that fills the role",
        )
    return found


def as_parameter(role: str, value: Any) -> Any:
    """A value of a file as a strategy takes it: JSON has lists where strategies have tuples, and descriptions where they have parts."""
    if isinstance(value, list):
        return tuple(as_parameter(role, item) for item in value)
    return build(role, value) if isinstance(value, Mapping) and "kind" in value else value


def _described(value: Any) -> Any:
    """A parameter as data; a part of a strategy as a strategy."""
    if isinstance(value, (tuple, list)):
        return [_described(item) for item in value]
    return describe(value) if _is_data(value) else value


def _is_data(strategy: Any) -> bool:
    return is_dataclass(strategy) and not isinstance(strategy, type)
