"""Frozen weights that somebody trained on public data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from apportion.curator.foreign_code import contain_errors
from apportion.errors import InvalidArgument
from apportion.models.check import copy_model


@dataclass(frozen=True)
class Pretrained:
    """The outputs of a network whose weights are public, without its last layer or with it: f(x; θ) for a fixed θ.

    Args:
        source: a `torch.nn.Module`; or, so that a saved run can build it again, the name of what makes one, "module:function".
        public: the statement where the weights come from. What was trained on the private records, or chosen by them, is not public.

    Source: Tramèr and Boneh, Differentially private learning needs better features (2021).
    Guarantee: it costs nothing if the statement is true; nobody can check that here, so it is printed wherever the features are named.

    Examples:
        >>> import apportion as ap
        >>> from torch import nn
        >>> ap.features.Pretrained(nn.Flatten(), public="it has no weights").public
        'it has no weights'
    """

    source: Any
    public: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.public, str) or not self.public.strip():
            reason = "weights that were learned from private records would reveal them, so it must be stated that these were not"
            fix = 'Say where they come from: public="ImageNet weights of ..."'
            raise InvalidArgument("features.public", self.public, reason, fix)
        if not isinstance(self.source, nn.Module) and not (isinstance(self.source, str) and ":" in self.source):
            reason = "it is neither a module nor the name of what makes one"
            fix = 'Pass a torch.nn.Module, or "module:function"'
            raise InvalidArgument("features.source", self.source, reason, fix)

    def build(self, shape: tuple[int, ...]) -> nn.Module:
        """A copy of the network, frozen."""
        if isinstance(self.source, nn.Module):
            return copy_model(self.source)
        found = _call(self.source)
        if not isinstance(found, nn.Module):
            reason = f"it returned a {type(found).__name__}"
            raise InvalidArgument("features.source", self.source, reason, "Return a torch.nn.Module")
        return found


def _call(name: str) -> Any:
    """What `module:function` returns, found from the current folder or installed."""
    import importlib
    import os
    import sys

    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    with contain_errors() as attempt:
        return getattr(importlib.import_module(module), function)()
    reason = f"it cannot be called without arguments: {attempt.text}"
    raise InvalidArgument("features.source", name, reason, "Name an importable module and a function in it")
