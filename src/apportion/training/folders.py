"""A refused run leaves no folder behind that was not there before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path


def missing_folders(folder: Path | None) -> tuple[Path, ...]:
    """`folder` and those above it that do not exist yet, the innermost first."""
    return () if folder is None else tuple(path for path in (folder, *folder.parents) if not path.exists())


def remove_empty(folders: Sequence[Path]) -> None:
    """Remove those of `folders` that are there and hold nothing."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextlib.contextmanager
def tidied(folder: Path) -> Iterator[None]:
    """If the body raises, remove `folder` and those above it, as far as they were made in the body and are empty."""
    made = missing_folders(folder)
    try:
        yield
    except BaseException:
        remove_empty(made)
        raise
