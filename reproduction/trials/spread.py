"""Settings that are spread evenly over ranges, the same ones on every machine: a Latin hypercube."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from apportion.errors import InvalidArgument

DIGITS = 3
"""Of numbers that are written into a study."""


def spread(seed: str, count: int, ranges: Mapping[str, Any]) -> list[dict[str, Any]]:
    """`count` settings with a value for each name.

    A range from low to high is cut into `count` parts that are equally wide on a logarithmic scale, and the middle of each part is used
    once, in an order of its own for every name. Of a list every value is used equally often, as far as that is possible.

    Args:
        seed: decides the orders; whoever has the same seed and count has the same order for a name.
        ranges: `{"low": 0.1, "high": 10.0}` or a list, by name.

    Source: McKay, Beckman and Conover, A comparison of three methods for selecting values of input variables, 1979.
    """
    columns = {name: _column(f"{seed} {name}", count, values) for name, values in ranges.items()}
    return [{name: column[row] for name, column in columns.items()} for row in range(count)]


def _column(seed: str, count: int, values: Any) -> list[Any]:
    parts = list(range(count))
    random.Random(seed).shuffle(parts)
    if isinstance(values, list) and values:
        return [values[part * len(values) // count] for part in parts]
    if isinstance(values, Mapping) and set(values) == {"low", "high"} and 0 < values["low"] < values["high"]:
        ratio = values["high"] / values["low"]
        return [rounded(values["low"] * ratio ** ((part + 0.5) / count)) for part in parts]
    fix = "Write { low = 0.1, high = 10.0 }, or a list"
    raise InvalidArgument("vary", values, "it is neither a range of positive numbers nor a list of values", fix)


def rounded(value: float) -> float:
    """With as many digits as a study needs."""
    return float(f"{value:.{DIGITS}g}")
