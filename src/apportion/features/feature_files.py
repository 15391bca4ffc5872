"""Features of private records on disk: as secret as the records, and found by what they were computed from.

    128 bytes   apportion features 1, and the key: a digest of the records and of all that decides what is computed from them
    rest        float32, one row for each record

A file is made under another name and gets its own when it is whole, so that nothing half done is ever taken for features.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apportion.errors import InvalidArgument

Floats = NDArray[np.float32]

_HEADER = 128
_TITLE = "apportion features 1"
_UNFINISHED = ".part"
_ABANDONED = 24 * 60 * 60
"""Seconds after which a file that nobody finished is removed."""


def stored_features(folder: Path, key: str, shape: tuple[int, int], compute: Callable[[Floats], None]) -> Floats:
    """The features with this key, from a file in `folder`; computed and kept there if there is none.

    Args:
        compute: fills an array of this shape.

    Returns:
        An array in a file: rows are read when they are needed, and what is written to it stays in memory.
    """
    path = folder / f"{key[:32]}.features"
    if not _is_whole(path, key, shape):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _remove_abandoned(folder)
            _make(path, key, shape, compute)
        except OSError as error:
            reason = f"features cannot be kept there: {error.strerror or error}"
            raise InvalidArgument("cache", str(folder), reason, "Name a folder on a disk with room for them") from error
    return _map(path, "c", shape)


def _head(key: str) -> bytes:
    return f"{_TITLE}\n{key}\n".encode().ljust(_HEADER)


def _is_whole(path: Path, key: str, shape: tuple[int, int]) -> bool:
    """Whether the file holds these features: a name alone says nothing about what is in it."""
    try:
        with path.open("rb") as file:
            found = file.read(_HEADER)
        return found == _head(key) and path.stat().st_size == _HEADER + 4 * shape[0] * shape[1]
    except OSError:
        return False


def _make(path: Path, key: str, shape: tuple[int, int], compute: Callable[[Floats], None]) -> None:
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}{_UNFINISHED}")
    try:
        with os.fdopen(os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "r+b") as file:
            _reserve(file.fileno(), _HEADER + 4 * shape[0] * shape[1])
            rows = _map(unfinished, "r+", shape)
            compute(rows)
            rows.flush()
            file.write(_head(key))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _reserve(descriptor: int, size: int) -> None:
    """Have the room before anything is computed: a disk that is full when a mapped page is written to would end the process."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except AttributeError:  # not on every system
        os.ftruncate(descriptor, size)


def _map(path: Path, mode: Any, shape: tuple[int, int]) -> np.memmap[Any, np.dtype[np.float32]]:
    return np.memmap(path, dtype=np.float32, mode=mode, offset=_HEADER, shape=shape)


def _remove_abandoned(folder: Path) -> None:
    for path in folder.glob(f"*{_UNFINISHED}"):
        try:
            if time.time() - path.stat().st_mtime > _ABANDONED:
                path.unlink()
        except OSError:  # somebody else was faster
            continue
