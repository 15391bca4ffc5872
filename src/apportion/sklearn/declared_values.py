"""From features and targets to tensors by what was declared of them.

What scikit-learn's own estimators read from the records is declared here: the bounds of features and targets, the classes, the number of
records. A value that breaks what was declared changes no output and no error:

| private value                    | what becomes of it                                                    |
|----------------------------------|-----------------------------------------------------------------------|
| a feature outside its bounds     | moved to the closer end                                               |
| a feature that is NaN            | taken for the middle of its bounds                                    |
| a label that is not in `classes` | the record contributes nothing                                        |
| a target outside its bounds      | moved to the closer end; NaN: the record contributes nothing          |

Only types, shapes and names of columns are ever refused: they are taken to be public. The fitted estimator holds the released weights
and no record, so that it can be pickled and published.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_array, column_or_1d

from apportion import validate
from apportion.errors import InvalidArgument

Floats = NDArray[np.float64]


def as_features(estimator: Any, X: Any) -> Floats:
    """Rows of numbers. Refused by its type and shape only: whatever the values are, there is no error."""
    found = check_array(_from_frame(X), dtype=None, ensure_all_finite=False, estimator=estimator, input_name="X")
    return require_numbers("X", found)


def _from_frame(X: Any) -> Any:
    """The numbers of a pandas frame with NaN for what is missing; otherwise whether a column is one of numbers could depend on a value."""
    kinds = [getattr(kind, "kind", "?") for kind in getattr(X, "dtypes", ())] if hasattr(X, "columns") else []
    if not kinds or "?" in kinds:
        return X
    for name, kind in zip(X.columns, X.dtypes, strict=True):
        if kind.kind not in "biuf":
            fix = "Encode it by a list of categories that was fixed without looking at the records"
            raise InvalidArgument("X", f"column {name!r} of {kind}", "it does not hold numbers", fix)
    return X.to_numpy(dtype=np.float64, na_value=np.nan)


def require_numbers(argument: str, found: NDArray[Any]) -> Floats:
    if found.dtype.kind not in "biuf":
        fix = "Encode each value by a list that was fixed without looking at the records, and pass an array of numbers"
        raise InvalidArgument(argument, f"array of {found.dtype}", "it does not hold numbers", fix)
    with np.errstate(all="ignore"):
        return found.astype(np.float64)


def as_column(estimator: Any, y: Any, *, labels: bool = False) -> NDArray[Any]:
    """One target for each record. Labels of a list stay what they are: as an array, a single text would turn all numbers into texts."""
    if y is None:
        reason = f"{type(estimator).__name__} requires y to be passed, but the target y is None"
        raise InvalidArgument("y", None, reason, "Pass the targets of the records")
    kind = getattr(getattr(y, "dtype", None), "kind", "?")
    if hasattr(y, "to_numpy") and kind in "biuf":  # of pandas: what is missing becomes NaN
        y = y.to_numpy(dtype=np.float64, na_value=np.nan)
    column: NDArray[Any] = column_or_1d(np.asarray(y, dtype=object if labels and kind == "?" else None), warn=True)
    return column


def as_classes(classes: Any) -> NDArray[Any]:
    if classes is None or isinstance(classes, (str, bytes)) or len(np.unique(np.asarray(classes))) < 2:
        reason = "two labels or more must be declared: the labels that occur are private"
        raise InvalidArgument("classes", validate.shown(classes), reason, "Pass for example classes=[0, 1]")
    return np.unique(np.asarray(classes))


def place_of(label: Any, places: dict[Any, int]) -> int:
    """The number of a class; −1, which lies outside of the domain, for what nobody declared, whatever it is."""
    try:
        return places.get(label, -1)
    except TypeError:  # it cannot be a key, so it is no declared class
        return -1


def as_bounds(argument: str, bounds: Any, features: int) -> tuple[Floats, Floats]:
    """Lower and upper ends, one for each feature."""
    try:
        low, high = (np.broadcast_to(np.asarray(end, dtype=np.float64), (features,)) for end in bounds)
    except (TypeError, ValueError):
        reason = f"it is not a pair of lower and upper ends, numbers or one for each of {features}"
        raise InvalidArgument(argument, validate.shown(bounds), reason, f"Pass {argument}=(0, 1)") from None
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        reason = "each lower end must be below its upper end, and both finite"
        raise InvalidArgument(argument, validate.shown(bounds), reason, f"Pass {argument}=(0, 1)")
    return low, high


def scale_to_bounds(values: Floats, low: Floats, high: Floats, missing: float = 0.0) -> Floats:
    """From the bounds to −1 … 1; outside, the closer end; NaN becomes `missing`, by default the middle."""
    with np.errstate(all="ignore"):
        scaled = 2 * (np.clip(values, low, high) - low) / (high - low) - 1
    return np.where(np.isnan(scaled), missing, scaled)
