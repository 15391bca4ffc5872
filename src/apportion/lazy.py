"""Names of a package that are imported when they are first used, so that importing the package itself stays fast (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` of `package`.

    A name may be that of a module too, as `audit.replay` is: Python stores a module in its package when it is imported, and here the
    exported name wins.

    Args:
        package: its `__name__`.
        modules: what it exports from which of its modules; "." is the module itself.
    """
    origins = {
        module.rpartition(".")[2] if name == "." else name: (module, name)
        for module, names in modules.items()
        for name in names
    }

    class Package(ModuleType):
        def __setattr__(self, name: str, value: object) -> None:
            _, attribute = origins.get(name, ("", "."))
            if attribute == "." or not isinstance(value, ModuleType):
                super().__setattr__(name, value)

    def get(name: str) -> Any:
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        origin, attribute = origins[name]
        module = importlib.import_module(f"{package}.{origin}")
        value = module if attribute == "." else getattr(module, attribute)
        setattr(sys.modules[package], name, value)
        return value

    sys.modules[package].__class__ = Package
    return get, lambda: sorted({*vars(sys.modules[package]), *origins})
