"""Experiment files that come with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from apportion import validate


def find(name: str) -> Path:
    """A TOML file by its path, or a packaged one by its name."""
    if Path(name).is_file() or name.endswith(".toml"):
        return Path(name)
    folder = Path(str(files(__package__)))
    packaged = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    return packaged[
        validate.known("file", name, packaged, "there is no such file and no packaged experiment of that name")
    ]
