"""The same noise multiplier at every step."""

from __future__ import annotations

from dataclasses import dataclass

from apportion import validate
from apportion.strategies.context import Context


@dataclass(frozen=True)
class Constant:
    """z_t = z.

    Args:
        multiplier: z, noise standard deviation ÷ sensitivity. `None`: the smallest z that the budget allows.

    Source: Abadi et al., Deep Learning with Differential Privacy, CCS 2016.
    """

    multiplier: float | None = None

    def __post_init__(self) -> None:
        if self.multiplier is not None:
            reason, fix = "without noise there is no privacy", "Leave it out to fit the budget"
            validate.store(self, multiplier=validate.positive("noise.multiplier", self.multiplier, reason, fix))

    def relative(self, context: Context) -> float:
        return 1.0
