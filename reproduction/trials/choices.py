"""The trials of a method, from its table in a design: variants times values, or ranges that trials are spread over."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from apportion.errors import InvalidArgument
from apportion.strategies.recipes import named
from reproduction.trials.spread import rounded, spread

STEP = "step"
"""Of a range: lr·C/(1 − momentum), how far a clipped gradient moves the weights in the end. lr follows from it, from the threshold C with
which the method begins, and from the momentum; so the range of a step suits many thresholds."""
THRESHOLD = "threshold"
"""Of a range: `clip.threshold`, or `clip.start` of a method whose threshold moves, so that both have their values in the same order."""
_OWN = ("label", "adapts", "variant", "printed", "vary")


def read_choices(
    values: Mapping[str, Any], vary: Mapping[str, Any], count: int
) -> tuple[list[dict[str, Any]], set[int]]:
    """The choices, and the numbers of those at either end of what is tried.

    Args:
        values: the table of the method. Either it has `variant`, each with `each`, the values of one setting; or it has `printed`, whole
            choices such as those of a paper, and the others are spread over the ranges of `vary`.
        vary, count: ranges that all methods share, and how many trials each has. A name has its values in the same order in all methods.
    """
    shared = {key: value for key, value in values.items() if key not in _OWN}
    if "variant" in values:
        return _product(shared, values["variant"])
    printed = [merged(shared, one) for one in values.get("printed", ())]
    ranges = {**vary, **values.get("vary", {})}
    rows = spread("trials", count - len(printed), {key: one for key, one in ranges.items() if one != []})
    choices = printed + [_chosen(shared, row) for row in rows]
    ends = {
        name: (min(row[name] for row in rows), max(row[name] for row in rows))
        for name in (STEP, "lr")
        if name in rows[0]
    }
    edges = {
        len(printed) + place
        for place, row in enumerate(rows, start=1)
        if any(row[name] in end for name, end in ends.items())
    }
    return choices, edges


def _product(shared: dict[str, Any], variants: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], set[int]]:
    """The product of the variants and, in each, of the values of one setting."""
    choices: list[dict[str, Any]] = []
    edges: set[int] = set()
    for variant in variants:
        own = {key: value for key, value in variant.items() if key != "each"}
        [(path, candidates)] = variant["each"].items()
        edges |= {len(choices) + 1, len(choices) + len(candidates)}
        choices += [merged(merged(shared, own), nested(path, value)) for value in candidates]
    return choices, edges


def _chosen(shared: dict[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """A choice with the values of a row, and with lr in the place of a step."""
    choice = shared
    for path, value in row.items():
        if path == THRESHOLD:
            choice = merged(choice, {"clip": {_begins_with(shared["name"]): value}})
        elif path != STEP:
            choice = merged(choice, nested(path, value))
    if STEP in row:
        clip = choice.get("clip", {})
        threshold = clip.get("threshold", clip.get("start"))
        if threshold is None:
            reason = "the method has neither clip.threshold nor clip.start"
            raise InvalidArgument("vary.step", row[STEP], reason, "Give lr a range instead")
        choice = merged(choice, {"lr": rounded(row[STEP] * (1 - choice.get("momentum", 0.0)) / threshold)})
    return choice


def _begins_with(recipe: str) -> str:
    """What the threshold of a recipe is called, or its first one."""
    return "threshold" if "threshold" in named(recipe).values("clip") else "start"


def nested(path: str, value: Any) -> dict[str, Any]:
    """`{"clip": {"start": 1.0}}` of "clip.start"."""
    first, _, rest = path.partition(".")
    return {first: nested(rest, value) if rest else value}


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Tables within tables are merged, so that `clip.start` and `clip.power` may be said in two places."""
    found = copy.deepcopy(dict(one))
    for key, value in other.items():
        inner = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = merged(found[key], value) if inner else copy.deepcopy(value)
    return found
