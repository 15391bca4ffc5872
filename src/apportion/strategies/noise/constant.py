"""The same noise multiplier at every step."""

from __future__ import annotations

from dataclasses import dataclass

from apportion.strategies.context import Context
from apportion.strategies.noise.noise_schedule import Schedule


@dataclass(frozen=True)
class Constant(Schedule):
    """z_t = z.

    Args:
        multiplier: z, noise standard deviation ÷ sensitivity. `None`: the smallest z that the budget allows.

    Source: Abadi et al., Deep Learning with Differential Privacy, CCS 2016.

    Examples:
        >>> from apportion.strategies import Context, noise
        >>> [noise.Constant().relative(Context(step, steps=40, sample_rate=0.1)) for step in (1, 40)]
        [1.0, 1.0]
    """

    multiplier: float | None = None

    def relative(self, context: Context) -> float:
        return 1.0
