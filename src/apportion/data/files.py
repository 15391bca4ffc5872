"""Find and read a file that may be stored plain, gzipped or xz-compressed."""

from __future__ import annotations

import gzip
import hashlib
import lzma
from pathlib import Path
from typing import IO, Any, cast

from apportion.errors import InvalidArgument

_OPEN: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
FETCH_AGAIN = "Delete it and fetch the data set again"


def unfit(path: Path | str, reason: str, fix: str = FETCH_AGAIN) -> InvalidArgument:
    """The error for a file that cannot be what it should be."""
    return InvalidArgument("file", str(path), reason, fix)


def locate(folder: Path, name: str) -> Path | None:
    """The path of `name`, `name.gz` or `name.xz` in `folder`; a name that ends in "/" asks for a folder."""
    if name.endswith("/"):
        path = folder / name
        return path if path.is_dir() else None
    paths = (folder / f"{name}{suffix}" for suffix in ("", *_OPEN))
    return next((path for path in paths if path.is_file()), None)


def required(folder: Path, name: str) -> Path:
    """Like `locate`, for a file that was there when the folder was chosen."""
    path = locate(folder, name)
    if path is None:
        raise InvalidArgument("folder", str(folder), f"the file {name} is missing", "Fetch the data set again")
    return path


def open_plain(path: Path) -> IO[bytes]:
    """Open for reading the decompressed content."""
    return cast(IO[bytes], _OPEN[path.suffix](path, "rb") if path.suffix in _OPEN else path.open("rb"))


def read(path: Path) -> bytes:
    """The decompressed content; a damaged archive is an `InvalidArgument` that names the file."""
    try:
        with open_plain(path) as stream:
            return stream.read()
    except (gzip.BadGzipFile, lzma.LZMAError, EOFError) as damage:
        raise unfit(path, f"it cannot be decompressed ({damage})") from None


def read_text(path: Path) -> str:
    """The decompressed content as UTF-8. Split it at "\\n" only: `str.splitlines` knows line ends that occur in texts."""
    try:
        return read(path).decode("utf-8")
    except UnicodeDecodeError as problem:
        raise unfit(path, f"it is not UTF-8 text ({problem})", "Convert it to UTF-8") from None


def sha256(path: Path) -> str:
    """sha256 of the decompressed content, because the same data is published under different gzip headers."""
    return hashlib.sha256(read(path)).hexdigest()
