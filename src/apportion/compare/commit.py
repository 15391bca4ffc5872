"""Which source a result was computed with."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import apportion


@cache
def commit() -> str | None:
    """The commit of the source that runs, with "+" if the library's files were changed since; `None` where there is no repository."""
    try:
        number, changes = _git("rev-parse", "--short=12", "HEAD"), _git("status", "--porcelain", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return None
    return number + ("+" if changes else "")


def _git(*arguments: str) -> str:
    folder = Path(apportion.__file__).parent
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
