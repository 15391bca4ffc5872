"""Thresholds that follow released values, between public bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from apportion.errors import InvalidArgument
from apportion.strategies.clip.groups import Grouped
from apportion.strategies.context import Context
from apportion.validate import check, checked, positive


@dataclass(frozen=True)
class Adaptive(Grouped):
    """What such clips have in common: where thresholds start, and the bounds they never leave.

    The price does not depend on the thresholds, so these may move freely. The multipliers of the statistics that move them are
    part of the step's own and are fixed beforehand.

    Args:
        start: C₀. With K groups each starts at C₀/√K, so that a record can move the whole gradient by C₀.
        minimum, maximum: of the threshold of each group. Noise could drive it anywhere without them.
    """

    start: float = checked(0.1, positive, "it bounds what one record can do")
    minimum: float = field(default=1e-3, kw_only=True, metadata=check(positive, "0 would release noise only"))
    maximum: float = field(default=1e3, kw_only=True, metadata=check(positive, "it bounds the noise as well"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.minimum <= self.start <= self.maximum:
            raise InvalidArgument(
                "clip.start",
                self.start,
                f"it lies outside of [minimum, maximum] = [{self.minimum:g}, {self.maximum:g}]",
                "Move the bounds apart",
            )

    def first_thresholds(self, context: Context) -> tuple[float, ...]:
        """C₀/√K for each of the K groups."""
        groups = len(self.split(context))
        return (self.clamp(self.start / math.sqrt(groups)),) * groups

    def clamp(self, threshold: float) -> float:
        return min(max(threshold, self.minimum), self.maximum)
