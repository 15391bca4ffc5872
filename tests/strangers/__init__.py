"""A zoo of strangers: models as people write them, most of them not as a library would like them.

`STRANGERS` maps a name to a `Stranger`: how it is built, its records, its loss, and what may become of it: exact in one pass, exact
record by record, or refused with a sentence. `tests/guard/test_strangers.py` runs them all.
"""

from __future__ import annotations

from strangers import (
    attending,
    chance,
    functional,
    hugging_face,
    machinery,
    mixing,
    pairs,
    remembering,
    routing,
    sequences,
)
from strangers.stranger import Stranger

KINDS = (sequences, attending, functional, pairs, routing, machinery, remembering, chance, mixing, hugging_face)
STRANGERS: dict[str, Stranger] = {name: stranger for kind in KINDS for name, stranger in kind.ENTRIES.items()}

__all__ = ["KINDS", "STRANGERS", "Stranger"]
