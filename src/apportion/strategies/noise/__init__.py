"""The noise role: the multiplier z_t of each step. It decides the price.

Every strategy here is a **schedule**: z_t = scale·relative(t) is known before any record is read, so ordinary exact
composition prices it. With `multiplier=None` the scale is solved from the budget, otherwise it is the given value.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from apportion.strategies.context import Context
from apportion.strategies.noise.constant import Constant
from apportion.strategies.noise.growing import GrowingMu


@runtime_checkable
class NoiseSchedule(Protocol):
    """A noise strategy whose multipliers are fixed in advance."""

    @property
    def multiplier(self) -> float | None: ...

    def relative(self, context: Context) -> float: ...


__all__ = ["Constant", "GrowingMu", "NoiseSchedule"]
