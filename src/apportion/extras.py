"""Packages that the core does without. A missing one is one sentence with the command that installs it."""

from __future__ import annotations

from importlib.util import find_spec

from apportion.errors import MissingExtra

EXTRAS = {
    "cli": ("typer", "rich", "pydantic"),
    "report": ("plotly", "jinja2"),
    "data": ("sklearn", "PIL", "platformdirs", "rich"),
    "tune": ("optuna",),
    "hf": ("transformers", "peft"),
    "tables": ("pyarrow",),
    "log": ("tensorboard", "mlflow"),
    "fabric": ("lightning_fabric",),
    "flower": ("flwr",),
}
"""The modules that come with each extra of the package."""


def require_extra(extra: str, *modules: str) -> None:
    """Raise `MissingExtra` unless every one of `modules` can be imported. Nothing is imported here.

    Args:
        extra: the name between the brackets of `pip install "apportion[...]"`.
        modules: top-level modules that come with it.
    """
    if missing := [module for module in modules if find_spec(module) is None]:
        raise MissingExtra(extra, *missing)
