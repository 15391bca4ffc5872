"""Features and targets as they are handed in, to arrays of numbers: no value of a record decides whether this raises.

Public is what belongs to the container: its type, the declared type of an array or of a column of a data frame, the shape, the names of
columns. What is wrong there is an error. A list has no declared type and no width: it is read record by record, and its width is that of
the declared bounds. Whatever a record in it holds, or raises when it is read, becomes NaN in that record alone:

| in a list               | what becomes of it                                              |
|-------------------------|-----------------------------------------------------------------|
| a cell that is no number (`None`, a text, 10**400) | NaN: missing                         |
| a row of another length, or none at all            | a row of NaN, which is not usable    |
| a label that cannot be compared                    | no declared class: not usable        |

No error shows a value: those of scikit-learn for a wrong shape print the array.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.utils import check_array, column_or_1d

from apportion.curator.foreign_code import contain_errors, watch_signals
from apportion.errors import InvalidArgument

Floats = NDArray[np.float64]
_NO_NUMBERS = "it does not hold numbers"


def as_features(estimator: Any, X: Any, width: int | None) -> Floats:
    """Rows of numbers. Refused by its type and shape only: whatever the values are, there is no error.

    Args:
        width: how many features were declared; a list of private records cannot be read without.
    """
    if _is_list(X) and not (width is None and estimator.public):
        if width is None:
            reason = "a list does not say how many features there are, and records must not be asked"
            fix = "Pass an array or a data frame, or bounds with one value for each feature"
            raise InvalidArgument("X", type(X).__name__, reason, fix)
        with _by_record():
            return np.array([_read_row(X, place, width) for place in range(len(X))]).reshape(-1, width)
    found = _from_frame(X)
    if not issparse(found):
        found = np.asarray(found)
        if found.ndim != 2:
            reason = f"it has {found.ndim} dimensions, and records are rows of features"
            fix = "Reshape your data: X.reshape(-1, 1) if there is a single feature"
            raise InvalidArgument("X", f"array of {found.dtype}", reason, fix)
        found = require_numbers("X", found)
    checked: Floats = check_array(found, ensure_all_finite=False, estimator=estimator, input_name="X")
    return checked


def as_labels(estimator: Any, y: Any) -> list[Any]:
    """One label for each record. In a list they stay what they are: as an array, a single text would turn all numbers into texts."""
    if not _is_list(y):
        labels: list[Any] = _as_column(estimator, y).tolist()
        return labels
    with _by_record():
        return [_read_item(y, place) for place in range(len(y))]


def as_targets(estimator: Any, y: Any) -> Floats:
    """One number for each record, NaN for what is none."""
    if not _is_list(y):
        return require_numbers("y", _as_column(estimator, y))
    with _by_record():
        return np.array([_as_number(_read_item(y, place)) for place in range(len(y))], dtype=np.float64)


def find_places(labels: list[Any], places: dict[Any, int]) -> NDArray[np.int64]:
    """The number of each label among the declared classes; −1, which lies outside of the domain, for whatever nobody declared."""

    def find(label: Any) -> int:
        with contain_errors():  # it is asked for its hash, and whether it equals a class
            return places.get(label, -1)
        return -1

    with _by_record():
        return np.array([find(label) for label in labels], dtype=np.int64)


def require_numbers(argument: str, found: NDArray[Any]) -> Floats:
    if found.dtype.kind == "c":
        reason = "Complex data not supported"
        raise InvalidArgument(
            argument, f"array of {found.dtype}", reason, "Pass real and imaginary part as two columns"
        )
    if found.dtype.kind not in "biuf":
        fix = "Encode each value by a list that was fixed without looking at the records, and pass an array of numbers"
        raise InvalidArgument(argument, f"array of {found.dtype}", _NO_NUMBERS, fix)
    with np.errstate(all="ignore"):
        return found.astype(np.float64)


def _is_list(values: Any) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, (str, bytes))


@contextmanager
def _by_record() -> Iterator[None]:
    """Values are asked one by one here. What they raise is contained, and what they warn of is not shown either."""
    with watch_signals(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _read_item(values: Sequence[Any], place: int) -> Any:
    with contain_errors():
        return values[place]
    return None


def _read_row(rows: Sequence[Any], place: int, width: int) -> Floats:
    row = _read_item(rows, place)
    with contain_errors():  # all cells are numbers: the usual case, at once
        found = np.array(row, dtype=np.float64)
        if found.shape == (width,):
            return found
    with contain_errors():
        cells = [_as_number(cell) for cell in islice(row, width + 1)]
        if len(cells) == width:
            return np.array(cells)
    return np.full(width, np.nan)


def _as_number(value: Any) -> float:
    with contain_errors():
        return float(value)
    return math.nan


def _from_frame(X: Any) -> Any:
    """The numbers of a pandas frame with NaN for what is missing; otherwise whether a column is one of numbers could depend on a value."""
    kinds = [getattr(kind, "kind", "?") for kind in getattr(X, "dtypes", ())] if hasattr(X, "columns") else []
    if not kinds or "?" in kinds:
        return X
    for name, kind in zip(X.columns, X.dtypes, strict=True):
        if kind.kind not in "biuf":
            fix = "Declare its categories with schema=apportion.tables.Schema(...)"
            raise InvalidArgument("X", f"column {name!r} of {kind}", _NO_NUMBERS, fix)
    return X.to_numpy(dtype=np.float64, na_value=np.nan)


def _as_column(estimator: Any, y: Any) -> NDArray[Any]:
    if y is None:
        reason = f"{type(estimator).__name__} requires y to be passed, but the target y is None"
        raise InvalidArgument("y", None, reason, "Pass the targets of the records")
    kind = getattr(getattr(y, "dtype", None), "kind", "?")
    if hasattr(y, "to_numpy") and kind in "biuf":  # of pandas: what is missing becomes NaN
        y = y.to_numpy(dtype=np.float64, na_value=np.nan)
    column: NDArray[Any] = column_or_1d(np.asarray(y), warn=True)
    return column
