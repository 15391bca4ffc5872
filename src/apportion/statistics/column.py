"""A column of numbers, read so that no record can be seen in the way it is read.

NaN stands for somebody without a value, and so does whatever is not a number. What lies outside of the declared bounds is clipped to them
or dropped, by a declared rule. How many that were is never said, and no error depends on a value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from apportion import validate
from apportion.curator.foreign_code import contain_errors, watch_signals
from apportion.errors import InvalidArgument

Column = NDArray[np.float64]
Bounds = tuple[float, float]
Outside = Literal["clip", "drop"]
GRID = 1 << 20
"""Cells between the two bounds: values become whole numbers 0 … GRID."""


def read_column(data: Any) -> Column:
    """One-dimensional float64. A list, or an array of objects, is read record by record, and what is not a number becomes NaN."""
    if isinstance(data, (list, tuple)):
        return _read_each(data)
    values = np.asarray(data)
    if values.ndim != 1 or values.dtype.kind not in "biufO":
        found = f"{values.ndim}-dimensional {values.dtype}"
        raise InvalidArgument("data", found, "it is not a column of numbers", "Pass one number for each record")
    if values.dtype.kind == "O":
        return _read_each(values)
    return values.astype(np.float64)


def _read_each(data: Iterable[Any]) -> Column:
    with watch_signals():
        return np.array([_read_number(one) for one in data], dtype=np.float64)


def _read_number(value: Any) -> float:
    with contain_errors():  # whatever a record does, the others are read
        return float(value)
    return float("nan")


def read_bounds(bounds: Any) -> Bounds:
    """(low, high), finite, low < high."""
    try:
        low, high = bounds
    except (TypeError, ValueError):
        reason = "it must be two numbers, declared and not looked up in the data"
        raise InvalidArgument("bounds", validate.shown(bounds), reason, "Try bounds=(0.0, 1.0)") from None
    fix = "Try bounds=(0.0, 1.0)"
    low, high = (validate.at_least(-1e300)("bounds", one, "it is an end of a range", fix) for one in (low, high))
    if not low < high or high > 1e300:
        raise InvalidArgument("bounds", (low, high), "the range is empty or endless", fix)
    return low, high


def keep_within(values: Column, bounds: Bounds, outside: Outside) -> Column:
    """Values outside of the bounds clipped to them, or NaN."""
    validate.known("outside", outside, ("clip", "drop"))
    if outside == "clip":
        return np.clip(values, *bounds)
    return np.where((values >= bounds[0]) & (values <= bounds[1]), values, np.nan)


def to_grid(values: Column, bounds: Bounds) -> NDArray[np.int64]:
    """Whole numbers in 0 … GRID, the closest to GRID·(x − low)/(high − low); of no meaning where x is NaN."""
    low, high = bounds
    parts = np.nan_to_num((values - low) / (high - low))
    return np.clip(np.rint(GRID * parts), 0, GRID).astype(np.int64)


def from_grid(position: float, bounds: Bounds) -> float:
    """Back from the grid."""
    low, high = bounds
    return low + (high - low) * position / GRID
