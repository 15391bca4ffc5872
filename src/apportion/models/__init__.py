"""Which models can be trained, and how it is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from apportion.lazy import lazy_names

if TYPE_CHECKING:
    from apportion.models.check import LayerCheck, ModelCheck
    from apportion.models.fix import Repaired
    from apportion.models.temper import TemperedSigmoid

__all__ = ["LayerCheck", "ModelCheck", "Repaired", "TemperedSigmoid"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "check": ("LayerCheck", "ModelCheck"),
        "fix": ("Repaired",),
        "temper": ("TemperedSigmoid",),
    },
)
