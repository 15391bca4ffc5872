"""The candidates of a search: every combination of a recipe and one value for each name. They are finite and known in advance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from apportion import validate
from apportion.accounting.rules import FixedPlan
from apportion.budget import Record
from apportion.errors import InvalidArgument
from apportion.planning import Plan, plan_steps, require_plan
from apportion.sampling import Sampling
from apportion.strategies.recipes import ROLES

MOST = 100_000
"""Candidates."""
_TRAINING, _RATE, _LENGTH = ("lr", "optimizer"), ("batch_size", "sample_rate"), ("epochs", "steps")
_NAMES = (*_TRAINING, *_RATE, *_LENGTH)


@dataclass(frozen=True, eq=False)
class Candidate:
    """All that one trial is made of.

    Args:
        settings: what distinguishes it: the recipe, and the value of every name.
        plan: what a run with these settings would execute if it had the whole budget to itself.
        lr, optimizer: as of `train`.
        options: keyword arguments of the function that makes the model.
    """

    settings: Mapping[str, Any]
    plan: Plan
    lr: float
    optimizer: Any
    options: Mapping[str, Any]


class Space:
    """Candidates by number, from 0.

    Args:
        plans: one for each recipe, with the same budget. They hold whatever the space does not vary.
        values: the values to choose from, by name: "lr", "optimizer", "batch_size" or "sample_rate", "epochs" or "steps" (where only the
            rate varies, the plan's number of steps stays), "clip.PARAMETER", "noise.PARAMETER", "update.PARAMETER", and "model.OPTION" for
            a keyword of the function that makes the model. All of them apply to every recipe.
        lr, optimizer: as of `train`, unless the space varies them.
    """

    def __init__(
        self,
        plans: Plan | Sequence[Plan],
        values: Mapping[str, Iterable[Any]],
        lr: float | None = None,
        optimizer: Any = "sgd",
    ):
        self.plans = _require_plans(plans)
        self.values = _require_values(values)
        if (lr is None) == ("lr" not in self.values):
            found = "there is none" if lr is None else "the space varies it too"
            raise InvalidArgument("lr", lr, found, 'Pass lr=0.5, or space={"lr": [0.25, 0.5, 1.0]}')
        self._fixed = {"lr": lr, "optimizer": optimizer}
        self.size = len(self.plans) * math.prod(map(len, self.values.values()))
        if self.size > MOST:
            raise InvalidArgument(
                "space", f"{self.size:,} candidates", f"{MOST:,} are the most", "Leave out some of the values"
            )
        self._planned: dict[tuple[Any, ...], Plan] = {}

    @property
    def budget(self) -> Any:
        """Of every plan."""
        return self.plans[0].budget

    def choices(self, number: int) -> tuple[int, tuple[int, ...]]:
        """Which plan candidate `number` has, and which value of each name."""
        picked = []
        for values in reversed(self.values.values()):
            number, position = divmod(number, len(values))
            picked.append(position)
        return number, tuple(reversed(picked))

    def number(self, plan: int, positions: Sequence[int]) -> int:
        """The reverse of `choices`."""
        for values, position in zip(self.values.values(), positions, strict=True):
            plan = plan * len(values) + position
        return plan

    def candidate(self, number: int) -> Candidate:
        """Candidate `number`, checked as far as that is possible without a model."""
        which, positions = self.choices(number)
        base = self.plans[which]
        chosen = {name: values[at] for (name, values), at in zip(self.values.items(), positions, strict=True)}
        training = {**self._fixed, **{name: chosen[name] for name in _TRAINING if name in chosen}}
        return Candidate(
            settings={"recipe": base.recipe.name, **chosen},
            plan=self._plan(which, chosen),
            lr=validate.positive("lr", training["lr"], "it scales every update", "Try lr=0.5"),
            optimizer=training["optimizer"],
            options={name.partition(".")[2]: value for name, value in chosen.items() if name.startswith("model.")},
        )

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """All of them, in order."""
        return tuple(self.candidate(number) for number in range(self.size))

    def describe(self) -> dict[str, Any]:
        """The space as data, to be compared when a search goes on."""
        return {
            "plans": [plan.describe() for plan in self.plans],
            "space": {name: [shown(value) for value in values] for name, values in self.values.items()},
            **{name: shown(value) for name, value in self._fixed.items()},
        }

    def _plan(self, which: int, chosen: Mapping[str, Any]) -> Plan:
        base = self.plans[which]
        strategies = {name: value for name, value in chosen.items() if name.partition(".")[0] in ROLES}
        sampling = {name: chosen[name] for name in (*_RATE, *_LENGTH) if name in chosen}
        if not strategies and not sampling:
            return base
        key = (which, *(shown(value) for value in (strategies | sampling).values()))
        if key not in self._planned:
            recipe = base.recipe.with_settings(strategies)
            recipe.require_complete()
            declared = _vary(base.sampling, sampling)
            same_noise = "noise" not in {name.partition(".")[0] for name in strategies} and declared == base.sampling
            self._planned[key] = (
                replace(base, recipe=recipe)
                if same_noise and recipe.noise == base.recipe.noise
                else _require_fixed(plan_steps(recipe, base.budget, declared, base.spare))
            )
            if base.usable is not None:
                self._planned[key] = self._planned[key].with_usable_count()
        return self._planned[key]


def shown(value: Any) -> Any:
    """A value as data: numbers, texts and lists as they are, a function or a class by its name."""
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if isinstance(value, (list, tuple)):
        return [shown(one) for one in value]
    name = getattr(value, "__qualname__", None)
    return repr(value) if name is None else f"{value.__module__}:{name}"


def _vary(base: Sampling, chosen: Mapping[str, Any]) -> Sampling:
    if not chosen:
        return base
    length = {name: chosen[name] for name in _LENGTH if name in chosen} or {"steps": base.steps}
    rate = {name: chosen[name] for name in _RATE if name in chosen} or {"sample_rate": base.sample_rate}
    return Sampling.declare(population=base.population, **rate, **length)


def _require_fixed(plan: Plan) -> Plan:
    """Refuse a plan whose multipliers follow released values: the price of a selection is known for plans fixed in advance."""
    if plan.norm is not None:
        reason = "each trial would ask for the normalisation of features again, and a search is priced for steps"
        raise InvalidArgument("plan", plan.recipe.name, reason, "Tune with features that are normalised by groups")
    if type(plan.rule()) is not FixedPlan:
        raise InvalidArgument(
            "plan",
            plan.recipe.name,
            "its multipliers follow released values, and a search compares plans that are fixed in advance",
            "Tune a recipe with a noise schedule",
        )
    if plan.budget.groups or plan.budget.unit != Record():
        raise InvalidArgument(
            "plan",
            plan.recipe.name,
            "a search is priced for one budget and for single records",
            "Tune with one budget for all records",
        )
    return plan


def _require_plans(plans: Any) -> tuple[Plan, ...]:
    listed = tuple(
        _require_fixed(require_plan(one)) for one in (plans if isinstance(plans, (list, tuple)) else [plans])
    )
    if not listed:
        raise InvalidArgument("plan", (), "there is nothing to try", "Pass a plan, or a list with one for each recipe")
    names = [plan.recipe.name for plan in listed]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidArgument("plan", twice, "two recipes have the same name", "Give each a name: Recipe(name=...)")
    for plan in listed[1:]:
        if plan.budget != listed[0].budget or plan.sampling.population != listed[0].sampling.population:
            raise InvalidArgument(
                "plan",
                plan.recipe.name,
                "its budget or population is not that of the first plan, so they cannot be compared",
                "Make all plans with the same budget and population",
            )
    return listed


def _require_values(space: Any) -> dict[str, tuple[Any, ...]]:
    if not isinstance(space, Mapping):
        raise InvalidArgument("space", validate.shown(space), "it is not a mapping", 'Try {"lr": [0.25, 0.5, 1.0]}')
    checked: dict[str, tuple[Any, ...]] = {}
    for name, values in space.items():
        role, dot, parameter = str(name).partition(".")
        if not (dot and parameter and role in (*ROLES, "model")):
            validate.known(
                "space",
                name,
                _NAMES,
                'there is no such setting; strategies have "clip.threshold", models "model.width"',
            )
        if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
            raise InvalidArgument(
                f"space[{name!r}]", validate.shown(values), "it is not a list of values", f'Try {{"{name}": [...]}}'
            )
        plain = tuple(value.item() if hasattr(value, "item") and not callable(value) else value for value in values)
        if not plain:
            raise InvalidArgument(f"space[{name!r}]", [], "there is nothing to choose from", "Leave it out")
        if len({repr(shown(value)) for value in plain}) < len(plain):
            raise InvalidArgument(f"space[{name!r}]", plain, "a value stands there twice", "Leave one out")
        checked[str(name)] = plain
    for pair in (_RATE, _LENGTH):
        if all(name in checked for name in pair):
            raise InvalidArgument("space", list(pair), "both say the same", "Vary one of them")
    return checked
