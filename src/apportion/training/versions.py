"""Which versions a result depends on."""

from __future__ import annotations

import platform
from importlib.metadata import version


def package_versions() -> dict[str, str]:
    """The versions that a result depends on."""
    packages = ("apportion", "torch", "numpy", "dp-accounting")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}
