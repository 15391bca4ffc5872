"""Where the files of a data set are looked for.

In this order: the folder passed as `data_dir`, the folder in $APPORTION_DATA, the cache of the user, and the folder where
Debian's data packages put theirs. In each of these PLACES the files may be in PLACE/<name>/ or in PLACE itself.
"""

from __future__ import annotations

import os
from pathlib import Path

from apportion.data import files
from apportion.data.entry import Entry
from apportion.errors import DataNotFound
from apportion.extras import require_extra

VARIABLE = "APPORTION_DATA"
DEBIAN = {"fashion-mnist": Path("/usr/share/datasets")}


def home(data_dir: Path | str | None = None) -> Path:
    """The first place, which is also where fetched files go."""
    return _chosen(data_dir)[0]


def places(name: str, data_dir: Path | str | None = None) -> list[Path]:
    """All places to look in for the data set `name`, the first one first."""
    chosen = _chosen(data_dir)
    if name in DEBIAN:
        chosen.append(DEBIAN[name])
    return chosen


def find(entry: Entry, data_dir: Path | str | None = None) -> Path | None:
    """The folder that directly holds the files, or None. Complete copies win over those that lack the test part."""
    folders = [folder for place in places(entry.name, data_dir) for folder in _folders(entry, place)]
    for folder in folders:
        if any(holds(folder, layout) for layout in entry.layouts):
            return folder
    if entry.partial:
        return next((folder for folder in folders if holds(folder, entry.partial)), None)
    return None


def holds(folder: Path, layout: tuple[str, ...]) -> bool:
    """True if every name of the layout is in the folder, compressed or not."""
    return all(files.locate(folder, name) is not None for name in layout)


def not_found(entry: Entry, data_dir: Path | str | None = None) -> DataNotFound:
    """The error for a data set that is nowhere, with what to do."""
    looked = ", ".join(f"{place / entry.name} and {place}" for place in places(entry.name, data_dir))
    return DataNotFound(
        f"The files of {entry.name} ({entry.file_list}) are not on this machine. Looked in {looked}. "
        f"Run `apportion data fetch {entry.name}`, or point --data-dir or ${VARIABLE} at a folder that has them. "
        "The data set digits needs no files."
    )


def _chosen(data_dir: Path | str | None) -> list[Path]:
    require_extra("data", "platformdirs")
    import platformdirs

    given = [data_dir, os.environ.get(VARIABLE)]
    return [Path(os.path.expanduser(place)) for place in given if place] + [
        platformdirs.user_cache_path("apportion") / "data"
    ]


def _folders(entry: Entry, place: Path) -> list[Path]:
    return [base / nested for base in (place / entry.name, place) for nested in ("", *entry.nested)]
