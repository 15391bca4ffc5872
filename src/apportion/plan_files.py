"""Plans as JSON: what is written of a budget, and how a file is read that a person may have edited. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from apportion import validate
from apportion.budget import UNITS, Budget, Group, User
from apportion.errors import InvalidArgument
from apportion.sampling import MOST_STEPS

FORMAT = 1
"""Of a plan's JSON."""


def describe_budget(budget: Budget) -> dict[str, Any]:
    """What is public of a budget: not whose each record is."""
    unit = budget.unit.describe() if isinstance(budget.unit, User) else {}
    groups = {"groups": [asdict(group) for group in budget.groups]} if budget.groups else {}
    return {
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "unit": budget.unit.name,
        **({"user": unit} if unit else {}),
        **groups,
    }


def read_budget(described: Mapping[str, Any]) -> Budget:
    for name in described:
        validate.known(
            "budget", name, ("epsilon", "delta", "unit", "user", "groups"), "a plan's budget has no such part"
        )
    kind = UNITS[validate.known("unit", described["unit"], UNITS, "there is no such unit of privacy")]
    if kind is not User and "user" in described:
        reason = "it declares more than one unit of privacy"
        raise InvalidArgument("unit", described["unit"], reason, "Restore the file")
    unit = User(**described["user"]) if kind is User else kind()
    groups = tuple(Group(**one) for one in described.get("groups", ()))
    return Budget(epsilon=described["epsilon"], delta=described["delta"], unit=unit, groups=groups)


def read_content(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            "plan", type(text).__name__, f"it is not valid JSON: {error}", "Restore the file"
        ) from None
    if not isinstance(content, dict) or "apportion_plan" not in content:
        raise InvalidArgument("plan", type(content).__name__, "it is not a plan", "Pass what plan.to_json() returned")
    if type(content["apportion_plan"]) is not int or content["apportion_plan"] != FORMAT:
        raise InvalidArgument(
            "plan",
            f"version {content['apportion_plan']!r}",
            f"this release of Apportion reads plans of version {FORMAT}",
            "Make the plan anew with `apportion plan`",
        )
    known = (
        "apportion_plan",
        "recipe",
        "budget",
        "sampling",
        "spare",
        "multipliers",
        "factors",
        "usable",
        "norm",
        "epsilon",
        "accountant",
    )
    for name in content:
        validate.known("plan", name, known, "a plan has no such part")
    return content


def spread(pairs: Sequence[tuple[float, int]]) -> list[float]:
    values: list[float] = []
    for multiplier, times in pairs:
        if type(times) is not int or not 0 < times <= MOST_STEPS - len(values):
            raise ValueError(f"multipliers hold {times!r} steps")
        values += [multiplier] * times
    return values


def edited(reason: str) -> InvalidArgument:
    return InvalidArgument("plan", "from JSON", reason, "Restore the file, or make the plan anew with `apportion plan`")
