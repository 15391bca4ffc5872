"""The trust boundary: the only room that reads private records. Everything it hands out went through a mechanism.

`curator.py` has the order of one request; `records.py` the data; `gradients/` per-record gradients; `clipping.py` their clipped sum;
`mechanisms.py` the noise; `randomness.py` where coins and noise come from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from apportion.lazy import lazy_names

if TYPE_CHECKING:
    from apportion.curator.curator import Curator
    from apportion.curator.randomness import Randomness
    from apportion.curator.records import Records, as_records

__all__ = ["Curator", "Randomness", "Records", "as_records"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "curator": ("Curator",),
        "randomness": ("Randomness",),
        "records": ("Records", "as_records"),
    },
)
