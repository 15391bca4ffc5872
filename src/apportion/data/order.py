"""An order and a split that each record decides for itself.

A split by row number moves records from one side to the other when an earlier record is removed, so neighbouring data sets
would differ in many training records and not in one. Here the side of a record follows from a keyed hash of its own
content, and equal records always land on the same side.
"""

from __future__ import annotations

from hashlib import blake2b

HELD_OUT_ONE_IN = 5


def position(record: str) -> int:
    """A fixed number in 0 … 2⁶⁴-1. Sorting by it mixes the classes, so that the first k rows are a fair sample."""
    digest = blake2b(record.encode("utf-8", "surrogateescape"), digest_size=8, key=b"apportion").digest()
    return int.from_bytes(digest, "big")


def held_out(record: str) -> bool:
    """True for one record in five: the test part of a set that was published without one."""
    return position(record) % HELD_OUT_ONE_IN == 0
