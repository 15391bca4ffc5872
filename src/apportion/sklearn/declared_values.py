"""What scikit-learn's own estimators read from the records is declared here: bounds of features and targets, classes, weights, columns.

A value that breaks what was declared changes no output and no error:

| private value                                | what becomes of it                     |
|----------------------------------------------|----------------------------------------|
| a feature outside its bounds                 | moved to the closer end                |
| a feature that is NaN                        | taken for the middle of its bounds     |
| a record without a feature within its bounds | it contributes nothing                 |
| a label that is not in `classes`             | the record contributes nothing         |
| a target that is NaN or outside its bounds   | the record contributes nothing         |

So wrong bounds or classes are seen in the noisy count of usable records. With a schema, features are encoded as `apportion.tables` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion import validate
from apportion.errors import InvalidArgument
from apportion.sklearn.private_rows import Floats
from apportion.tables.encoding import Encoding
from apportion.tables.schema import Column, require_schema

_KINDS = dict.fromkeys("biuf", "numbers") | dict.fromkeys("US", "texts")


def as_classes(classes: Any, y: Any) -> NDArray[Any]:
    """The declared classes, sorted. Refused if no label of `y` can be one of them, by the type of an array, which is public."""
    found = _sort_classes(classes)
    if found is None or len(found) < 2:
        reason = "two labels or more must be declared, all numbers or all texts: the labels that occur are private"
        raise InvalidArgument("classes", validate.shown(classes), reason, "Pass for example classes=[0, 1]")
    kinds = _KINDS.get(found.dtype.kind), _KINDS.get(getattr(getattr(y, "dtype", None), "kind", ""))
    if None not in kinds and kinds[0] != kinds[1]:
        reason = f"they are {kinds[0]} and y holds {kinds[1]} ({y.dtype}), so that no record could be used"
        raise InvalidArgument("classes", validate.shown(classes), reason, "Declare the labels as they stand in y")
    return found


def _sort_classes(classes: Any) -> NDArray[Any] | None:
    """`None` for what cannot be told from another label: no sequence, or one of sequences; texts beside numbers; without an order; NaN."""
    if isinstance(classes, (str, bytes)) or not isinstance(classes, Iterable):
        return None
    try:
        declared = np.asarray(classes)
        if declared.ndim != 1 or len({isinstance(one, str) for one in classes}) != 1:
            return None
        found: NDArray[Any] = np.unique(declared)
        return found if bool((found == found).all()) else None
    except (TypeError, ValueError):
        return None


def as_class_weights(class_weight: Any, declared: Any, classes: NDArray[Any]) -> tuple[float, ...] | None:
    """The weight of each class, in the order of `classes`.

    Args:
        class_weight: by label, 1 for those that are not named; or as many as were declared, in that order.
        declared: the classes as they were declared.
        classes: the same, sorted.
    """
    if class_weight is None:
        return None
    if isinstance(class_weight, (str, bytes)):
        reason = "weights are declared: those of scikit-learn are exact counts of the private labels"
        fix = "Pass {label: weight}; apportion.statistics.class_weights makes them from a private count"
        raise InvalidArgument("class_weight", class_weight, reason, fix)
    labels = np.asarray(declared).tolist()
    if not isinstance(class_weight, Mapping):
        given = list(class_weight) if isinstance(class_weight, Iterable) else [class_weight]
        if len(given) != len(labels):
            reason = f"{len(labels)} classes were declared"
            raise InvalidArgument(
                "class_weight", validate.shown(given), reason, "Pass one weight for each, in that order"
            )
        class_weight = dict(zip(labels, given, strict=True))
    if unknown := [label for label in class_weight if label not in labels]:
        raise InvalidArgument(
            "class_weight", validate.shown(unknown[0]), "there is no such class", f"Name some of {labels}"
        )
    return tuple(class_weight.get(label, 1.0) for label in classes.tolist())


def as_bounds(argument: str, bounds: Any, features: int) -> tuple[Floats, Floats]:
    """Lower and upper ends, one for each feature."""
    try:
        if isinstance(bounds, (str, bytes)):  # two digits are no pair of numbers
            raise TypeError
        low, high = (np.broadcast_to(np.asarray(end, dtype=np.float64), (features,)) for end in bounds)
    except (TypeError, ValueError):
        reason = f"it is not a pair of lower and upper ends, numbers or one for each of {features}"
        raise InvalidArgument(argument, validate.shown(bounds), reason, f"Pass {argument}=(0, 1)") from None
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        reason = "each lower end must be below its upper end, and both finite"
        raise InvalidArgument(argument, validate.shown(bounds), reason, f"Pass {argument}=(0, 1)")
    return low, high


def declared_width(bounds: Any) -> int | None:
    """How many features bounds are of; `None` if they are the same for all."""
    if not isinstance(bounds, (tuple, list, np.ndarray)):
        return None
    return next((len(end) for end in bounds if np.ndim(end) == 1), None)


def scale_to_bounds(values: Floats, low: Floats, high: Floats) -> Floats:
    """From the bounds to −1 … 1; outside, the closer end; the middle for NaN."""
    with np.errstate(all="ignore"):
        scaled = 2 * (np.clip(values, low, high) - low) / (high - low) - 1
    return np.where(np.isnan(scaled), 0.0, scaled)


def lies_within(values: Floats, low: Floats, high: Floats) -> NDArray[np.bool_]:
    """Which records have a value within its bounds."""
    return np.asarray(((values >= low) & (values <= high)).any(axis=1))


def as_encoding(schema: Any) -> Encoding:
    """How the columns of X are encoded. The target is declared elsewhere: here it stands for a column that X has not."""
    declared = require_schema(schema)
    if declared.weights:
        reason = "a schema of features has no classes"
        raise InvalidArgument("schema.loss.weights", dict(declared.weights), reason, "Pass them as class_weight")
    target = "target of " + ", ".join(declared.columns)
    columns = {**declared.columns, target: Column(range=(0, 1))}
    return Encoding(replace(declared, columns=columns), target)


def encode_frame(encoding: Encoding, X: Any) -> tuple[Floats, NDArray[np.bool_]]:
    """The inputs from −1 to 1 that the columns of a frame become, and which records could be read."""
    if not hasattr(X, "columns"):
        reason = "a schema is about named columns"
        raise InvalidArgument(
            "X", type(X).__name__, reason, "Pass a pandas or polars DataFrame, or bounds instead of schema"
        )
    table = encoding.read_inputs(X, "X")
    return 2 * table.inputs.astype(np.float64) - 1, ~table.broken
