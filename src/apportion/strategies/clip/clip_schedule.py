"""Thresholds that are known before the run: a formula in the step or the epoch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from apportion.errors import InvalidArgument
from apportion.releases import ClippedSum
from apportion.request import Released
from apportion.strategies.clip.groups import Grouped
from apportion.strategies.context import Context


@dataclass(frozen=True)
class ClipSchedule(Grouped, ABC):
    """C_t is `threshold_at(context)`. With K groups each has C_t/√K, so that a record can move the whole gradient by C_t as before.

    Such a clip learns nothing from what is released and has no state.
    """

    @abstractmethod
    def threshold_at(self, context: Context) -> float:
        """C_t."""

    def init(self, context: Context) -> None:
        return None

    def propose(self, state: None, context: Context) -> tuple[ClippedSum, ...]:
        groups = 1 if self.groups == "flat" else len(self.split(context))
        return self.clipped_sums(context, [self.threshold_at(context) / math.sqrt(groups)] * groups)

    def observe(self, state: None, released: Released) -> None:
        return None


def require_floor(minimum: float, start: float) -> None:
    """Refuse a floor that lies above the threshold from which a schedule falls."""
    if minimum > start:
        raise InvalidArgument("clip.minimum", minimum, f"it lies above clip.start={start:g}", "Use a smaller minimum")
