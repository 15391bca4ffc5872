"""Names of a package that are imported when they are first used, so that importing the package itself stays fast (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` of `package`.

    Args:
        package: its `__name__`.
        modules: what it exports from which of its modules; "." is the module itself.
    """
    origins = {
        module.rpartition(".")[2] if name == "." else name: (module, name)
        for module, names in modules.items()
        for name in names
    }

    def get(name: str) -> Any:
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        origin, attribute = origins[name]
        module = importlib.import_module(f"{package}.{origin}")
        value = module if attribute == "." else getattr(module, attribute)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *origins})
