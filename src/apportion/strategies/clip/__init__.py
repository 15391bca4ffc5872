"""The clip role: how far one record may move the sum. It moves thresholds, never multipliers, so it costs nothing extra.

`propose` returns the releases of a request; `observe` may use what was released to choose the next thresholds.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from apportion.request import Release, Released
from apportion.strategies.clip.decay import Decay
from apportion.strategies.clip.fixed import Fixed
from apportion.strategies.clip.sensitivity_decay import SensitivityDecay
from apportion.strategies.context import Context


@runtime_checkable
class Clip(Protocol):
    """What every clip strategy offers. `State` is whatever the strategy needs to remember; `None` if nothing."""

    def init(self, context: Context) -> Any: ...

    def propose(self, state: Any, context: Context) -> tuple[Release, ...]: ...

    def observe(self, state: Any, released: Released) -> Any: ...


__all__ = ["Clip", "Decay", "Fixed", "SensitivityDecay"]
