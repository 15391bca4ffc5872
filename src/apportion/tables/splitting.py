"""Hold records back by a keyed hash of what names them: never by their place, which one record less would shift for all others."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def hold_out(names: Sequence[str | None], fraction: float, key: bytes) -> NDArray[np.bool_]:
    """Which records are held out: those with BLAKE2b_key(name) < fraction·2⁶⁴, for a 64-bit digest.

    It depends on the record's own name and on a key that is drawn without looking at the data. Records of one name stay together.

    Args:
        names: of each record: its id, its contents, or its owner. One without a name (`None`) is not held out.
        fraction: the part that is expected to be held out.
        key: of at most 64 bytes.
    """
    bound = int(fraction * 2**64)
    return np.array([name is not None and _digest(name, key) < bound for name in names], dtype=bool)


def _digest(name: str, key: bytes) -> int:
    found = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), key=key, digest_size=8, person=b"apportion split")
    return int.from_bytes(found.digest(), "little")
