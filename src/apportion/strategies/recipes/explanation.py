"""A recipe in words and numbers, taken from the strategies themselves, so that it cannot say something else than they do."""

from __future__ import annotations

import dataclasses
import inspect
import re
from dataclasses import dataclass
from typing import Any

from apportion.strategies.clip.clip_schedule import ClipSchedule
from apportion.strategies.context import Context
from apportion.strategies.recipes.recipe import ROLES, Recipe
from apportion.strategies.roles import NoiseSchedule
from apportion.strategies.update.update_chain import parts_of

EXAMPLE_STEPS, EXAMPLE_RATE = 1000, 0.05
"""The run that is drawn: 50 epochs of 20 steps."""


@dataclass(frozen=True)
class Parameter:
    """A hyper-parameter of a recipe: as `--set role.name=value` takes it, its value, and what it means."""

    role: str
    name: str
    value: Any
    meaning: str


@dataclass(frozen=True)
class Part:
    """The strategy of one role: its formula and where it comes from."""

    role: str
    kind: str
    formula: str
    source: str


def describe_roles(recipe: Recipe) -> tuple[Part, ...]:
    """What fills each role, and the change to the model if there is one."""
    chosen = {role: getattr(recipe, role) for role in (*ROLES, "model")} if recipe.private else {}
    return tuple(
        Part(role, type(strategy).__name__, _read_formula(type(strategy)), _read_source(type(strategy)))
        for role, whole in chosen.items()
        for strategy in parts_of(whole)
        if strategy is not None
    )


def list_parameters(recipe: Recipe) -> tuple[Parameter, ...]:
    """All hyper-parameters of the recipe, role by role."""
    return tuple(
        Parameter(role, name, value, _find_meaning(recipe, role, name))
        for role in ROLES
        for name, value in recipe.values(role).items()
    )


def example_schedule(recipe: Recipe) -> dict[str, list[float] | None]:
    """C_t and z_t/z_1 over the run that is drawn; `None` for thresholds that follow released values."""
    contexts = [Context(step, EXAMPLE_STEPS, EXAMPLE_RATE) for step in range(1, EXAMPLE_STEPS + 1)]
    if not isinstance(recipe.noise, NoiseSchedule):
        return {"clip": None, "noise": None}
    noise = [recipe.noise.relative(context) for context in contexts]
    clip: list[float] | None = None
    if isinstance(recipe.clip, ClipSchedule) and recipe.complete:
        clip = [recipe.clip.threshold_at(context) for context in contexts]
    return {"clip": clip, "noise": [value / noise[0] for value in noise]}


def _read_formula(kind: type) -> str:
    """The first paragraph of a strategy's documentation, which is its formula."""
    return " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())


def _read_source(kind: type) -> str:
    found = re.search(r"^Source: (.*?)(?=\n\n|^Guarantee:|\Z)", inspect.cleandoc(kind.__doc__ or ""), re.S | re.M)
    return " ".join(found.group(1).split()) if found else ""


def _find_meaning(recipe: Recipe, role: str, name: str) -> str:
    """What the documentation of a strategy, or of what it inherits from, says about a parameter."""
    part, _, parameter = name.rpartition(".")
    kind = next(type(one) for one in parts_of(getattr(recipe, role)) if part in ("", type(one).__name__))
    for ancestor in kind.__mro__:
        if dataclasses.is_dataclass(ancestor) and parameter in (found := _read_arguments(ancestor.__doc__ or "")):
            return found[parameter]
    return ""


def _read_arguments(text: str) -> dict[str, str]:
    """The section `Args:` of a documentation string: one entry for each name, which may stand with others before one colon."""
    lines = inspect.cleandoc(text).splitlines()
    if "Args:" not in lines:
        return {}
    entries: dict[str, str] = {}
    names: list[str] = []
    for line in lines[lines.index("Args:") + 1 :]:
        if line and not line.startswith("    "):
            break
        start = re.match(r"    (\w+(?:, \w+)*): (.*)", line)
        if start:
            names = start.group(1).split(", ")
            entries |= dict.fromkeys(names, start.group(2))
        else:
            entries |= {name: f"{entries[name]} {line.strip()}".strip() for name in names}
    return entries
