"""A zoo of strangers: models as people write them, most of them not as a library would like them.

`STRANGERS` maps a name to a `Stranger`: how it is built, its records, its loss, and what may become of it: exact in one pass, exact
record by record, or refused with a sentence. `tests/guard/test_strangers.py` runs them all.
"""

from __future__ import annotations

from strangers import sequences
from strangers.stranger import Stranger

STRANGERS: dict[str, Stranger] = {
    **sequences.ENTRIES,
}

__all__ = ["STRANGERS", "Stranger"]
