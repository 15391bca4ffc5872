"""One record, one row: a data set that names a record twice would let it move a sum by twice the threshold.

`Subset` takes any list of indices, and `ConcatDataset` any list of data sets. Both are followed down to the data sets that hold the
records, where every record has one name: the place of its data set among them, and its index there. What a person's own class does with its
index cannot be seen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Subset

from apportion.errors import InvalidArgument

_Names = NDArray[np.int64] | list[Any]


def require_distinct(argument: str, data: Any) -> None:
    """Refuse a `Subset` or `ConcatDataset`, nested or not, in which a record stands more than once. Takes time linear in its length."""
    if isinstance(data, Subset | ConcatDataset) and _has_repeats(_record_names(data, {})):
        raise InvalidArgument(
            argument,
            type(data).__name__,
            "a record stands in it more than once, and would move the sum by more than its threshold, for which the noise does not pay",
            "Name every record once; to weigh records, multiply their losses",
        )


def _record_names(data: Any, held: dict[int, _Names]) -> _Names:
    """One name for each item of `data`, equal for the same record. `held` are those of the data sets at the bottom, by identity."""
    if isinstance(data, ConcatDataset):
        parts = [_record_names(part, held) for part in data.datasets]
        if all(isinstance(part, np.ndarray) for part in parts):
            return np.concatenate(parts)
        return [name for part in parts for name in part]
    if isinstance(data, Subset):
        chosen = np.asarray(data.indices)
        if chosen.dtype.kind not in "iub" or chosen.ndim != 1:  # a data set may call its records by name
            return [(id(data.dataset), index) for index in data.indices]
        names = _record_names(data.dataset, held)
        chosen = chosen.astype(np.int64) % max(1, len(names))  # -1 is the last one
        return names[chosen] if isinstance(names, np.ndarray) else [names[index] for index in chosen.tolist()]
    if id(data) not in held:
        first = sum(map(len, held.values()))
        held[id(data)] = np.arange(first, first + len(data))
    return held[id(data)]


def _has_repeats(names: _Names) -> bool:
    if isinstance(names, np.ndarray):
        if len(names) == 0:
            return False
        seen = np.zeros(int(names.max() - names.min()) + 1, dtype=bool)
        seen[names - names.min()] = True
        return int(seen.sum()) != len(names)
    try:
        return len(set(names)) != len(names)
    except TypeError:  # names that cannot be compared
        return False
