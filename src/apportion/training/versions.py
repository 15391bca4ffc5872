"""Which versions, and which source, a result depends on."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path


def package_versions() -> dict[str, str]:
    """The versions that a result depends on."""
    packages = ("apportion", "torch", "numpy", "dp-accounting")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


@cache
def source_commit() -> str | None:
    """The commit of the library's source, with "+" if its files were changed since; `None` outside a repository."""
    try:
        number, changes = _git("rev-parse", "--short=12", "HEAD"), _git("status", "--porcelain", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return None
    return number + ("+" if changes else "")


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parents[1]), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
