"""Noise that falls by a law known in advance: as 1/t, exponentially, in steps, geometrically, or along a curve or line to an end value."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from apportion.strategies.context import Context
from apportion.strategies.noise.noise_schedule import Decay, Pace, Paced, Schedule, require_range
from apportion.validate import checked, in_open_unit, positive, whole


@dataclass(frozen=True)
class TimeDecay(Decay):
    """σ_t = σ₀ / (1 + k·t), where t = 0, 1, 2, … epochs are over.

    Args:
        rate: k > 0.
        multiplier: σ₀; 10 in the published runs.

    Source: Yu L. et al., Differentially Private Model Publishing for Deep Learning, S&P 2019, time-based decay.

    Examples:
        >>> from apportion.strategies import Context, noise
        >>> falling = noise.TimeDecay(rate=1.0)
        >>> [falling.relative(Context(step, steps=40, sample_rate=0.1)) for step in (1, 11, 31)]  # 0, 1 and 3 epochs are over
        [1.0, 0.5, 0.25]
    """

    rate: float = checked(0.05, positive, "the noise falls by 1/(1 + rate) in the first epoch")

    def decay(self, elapsed: int) -> float:
        return 1 / (1 + self.rate * elapsed)


@dataclass(frozen=True)
class ExponentialDecay(Decay):
    """σ_t = σ₀·e^(−k·t), where t = 0, 1, 2, … epochs are over.

    Args:
        rate: k > 0.
        multiplier: σ₀; 10 in the published runs.

    Source: Yu L. et al., Differentially Private Model Publishing for Deep Learning, S&P 2019, exponential decay.

    Examples:
        >>> from apportion.strategies import Context, noise
        >>> falling = noise.ExponentialDecay(rate=0.5)
        >>> [round(falling.relative(Context(step, steps=200, sample_rate=0.1)), 3) for step in (1, 11, 21, 200)]
        [1.0, 0.607, 0.368, 0.01]
    """

    rate: float = checked(0.01, positive, "it is the exponent by which the noise falls in an epoch")

    def decay(self, elapsed: int) -> float:
        return math.exp(-self.rate * elapsed)


@dataclass(frozen=True)
class StepDecay(Decay):
    """σ_t = σ₀·k^⌊t/period⌋, where t = 0, 1, 2, … epochs are over.

    The survey of Monir et al. prints the exponent without the floor; that would be an exponential decay.

    Args:
        factor: k in (0, 1).
        period: epochs (or steps, as `per` says) between two falls.
        multiplier: σ₀; 10 in the published runs.

    Source: Yu L. et al., Differentially Private Model Publishing for Deep Learning, S&P 2019, step decay.

    Examples:
        >>> from apportion.strategies import Context, noise
        >>> falling = noise.StepDecay(factor=0.5, period=10, per="step")
        >>> [falling.relative(Context(step, steps=40, sample_rate=0.1)) for step in (1, 10, 11, 31)]
        [1.0, 1.0, 0.5, 0.125]
    """

    factor: float = checked(0.6, in_open_unit, "the noise is multiplied by it and must fall, but not to 0")
    period: int = checked(10, whole, "the noise stays for that long")

    def decay(self, elapsed: int) -> float:
        return float(self.factor ** (elapsed // self.period))


@dataclass(frozen=True)
class GeometricDecay(Decay):
    """σ_t² = R^t·σ₀², where t = 0, 1, 2, … steps are over.

    Args:
        factor: R in (0, 1), of the *variance*.
        multiplier: σ₀.

    Source: Zhang X. et al., Adaptive Privacy Preserving Deep Learning Algorithms for Medical Data, WACV 2021, who price
    decaying noise by tCDP, far above the price here. The law of decay is our reading: with it their bound has a closed form.

    Examples:
        >>> from apportion.strategies import Context, noise
        >>> falling = noise.GeometricDecay(factor=0.25)
        >>> [falling.relative(Context(step, steps=40, sample_rate=0.1)) for step in (1, 2, 3)]
        [1.0, 0.5, 0.25]
    """

    factor: float = checked(
        0.999, in_open_unit, "the variance is multiplied by it at every step and must fall, but not to 0"
    )
    per: Pace = field(default="step", kw_only=True)

    def decay(self, elapsed: int) -> float:
        return float(self.factor ** (elapsed / 2))


@dataclass(frozen=True)
class PolynomialDecay(Paced):
    """σ_t = (σ₀ − σ_end)·(1 − t/period)^k + σ_end, where t = 0, 1, 2, … epochs are over; σ_end after `period` (ours).

    Args:
        end: σ_end/σ₀ in (0, 1). A part of σ₀, so that it means the same when σ₀ is solved from the budget.
        power: k > 0; 1 is a straight line.
        period: epochs (or steps, as `per` says) until the noise is at its end value.
        multiplier: σ₀; 10 in the published runs, with σ_end = 2.

    Source: Yu L. et al., Differentially Private Model Publishing for Deep Learning, S&P 2019, polynomial decay.

    Examples:
        >>> from apportion.strategies import Context, noise
        >>> falling = noise.PolynomialDecay(end=0.2, power=1.0, period=4)
        >>> [round(falling.relative(Context(step, steps=90, sample_rate=0.1)), 3) for step in (1, 21, 41, 90)]
        [1.0, 0.6, 0.2, 0.2]
    """

    end: float = checked(
        0.2, in_open_unit, "it is the last multiplier as a part of the first, and the noise must fall, but not to 0"
    )
    power: float = checked(3.0, positive, "with 0 the noise would not fall")
    period: int = checked(100, whole, "the decay takes that long")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range("noise.end", self.end, 1 / self.end)

    def relative(self, context: Context) -> float:
        left = max(0.0, 1 - self.elapsed(context) / self.period)
        return (1 - self.end) * float(left**self.power) + self.end


@dataclass(frozen=True)
class LinearDecay(Schedule):
    """σ_t = σ₀·(1 − (1 − end)·t/T), where t = 0..T−1 steps are over.

    Args:
        end: σ_T/σ₀ in (0, 1), which the line reaches when the run is over.
        multiplier: σ₀.

    Source: Zhang X. et al., Adaptive Privacy Preserving Deep Learning Algorithms for Medical Data, WACV 2021, who decay the
    noise; that the multiplier does so linearly, and until the end of the run, is our reading.

    Examples:
        >>> from apportion.strategies import Context, noise
        >>> falling = noise.LinearDecay(end=0.5)
        >>> [falling.relative(Context(step, steps=100, sample_rate=0.1)) for step in (1, 51)]
        [1.0, 0.75]
    """

    end: float = checked(
        0.5, in_open_unit, "it is where the line ends, as a part of its start: the noise must fall, but not to 0"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range("noise.end", self.end, 1 / self.end)

    def relative(self, context: Context) -> float:
        return 1 - (1 - self.end) * (context.step - 1) / context.steps
