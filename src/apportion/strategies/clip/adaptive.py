"""Thresholds that follow released values, between public bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from apportion import validate
from apportion.errors import InvalidArgument
from apportion.strategies.clip.groups import Grouped
from apportion.strategies.context import Context


@dataclass(frozen=True)
class Adaptive(Grouped):
    """What such clips have in common: where thresholds start, and the bounds they never leave.

    The price does not depend on the thresholds, so these may move freely. The multipliers of the statistics that move them are
    part of the step's own and are fixed beforehand.

    Args:
        start: C₀. With K groups each starts at C₀/√K, so that a record can move the whole gradient by C₀.
        minimum, maximum: of the threshold of each group. Noise could drive it anywhere without them.
    """

    start: float = 0.1
    minimum: float = field(default=1e-3, kw_only=True)
    maximum: float = field(default=1e3, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.store(
            self,
            start=validate.positive("clip.start", self.start, "it bounds what one record can do", "Try start=0.1"),
            minimum=validate.positive("clip.minimum", self.minimum, "0 would release noise only", "Try minimum=1e-3"),
            maximum=validate.positive("clip.maximum", self.maximum, "it bounds the noise as well", "Try maximum=1e3"),
        )
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
        return (self.bounded(self.start / math.sqrt(groups)),) * groups

    def bounded(self, threshold: float) -> float:
        return min(max(threshold, self.minimum), self.maximum)
