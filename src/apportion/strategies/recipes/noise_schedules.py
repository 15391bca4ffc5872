"""A fixed threshold, and noise that falls by a law known in advance."""

from __future__ import annotations

from apportion.strategies.clip import Fixed
from apportion.strategies.noise import (
    ExponentialDecay,
    GeometricDecay,
    InfluenceWeighted,
    NoiseSchedule,
    PolynomialDecay,
    PrivacyUtility,
    StepDecay,
    TimeDecay,
)
from apportion.strategies.recipes.recipe import Recipe


def _with_fixed_clip(name: str, law: str, threshold: float, noise: NoiseSchedule) -> Recipe:
    return Recipe(
        name=name,
        summary=f"fixed clip, noise {law}",
        clip=Fixed(threshold=threshold),
        noise=noise,
        adapts=("budget",),
        price="scheduled",
    )


def yu_noise_time(threshold: float = 1.0, rate: float = 0.05, multiplier: float | None = None) -> Recipe:
    """DP-SGD with noise that falls as the inverse of the epochs."""
    noise = TimeDecay(rate=rate, multiplier=multiplier)
    return _with_fixed_clip("yu-noise-time", "falls as 1/(1 + k·t) with the epochs", threshold, noise)


def yu_noise_exponential(threshold: float = 1.0, rate: float = 0.01, multiplier: float | None = None) -> Recipe:
    """DP-SGD with noise that falls exponentially with the epochs."""
    noise = ExponentialDecay(rate=rate, multiplier=multiplier)
    return _with_fixed_clip("yu-noise-exponential", "falls as e^(−k·t) with the epochs", threshold, noise)


def yu_noise_step(
    threshold: float = 1.0, factor: float = 0.6, period: int = 10, multiplier: float | None = None
) -> Recipe:
    """DP-SGD with noise that falls by a factor after every few epochs."""
    noise = StepDecay(factor=factor, period=period, multiplier=multiplier)
    return _with_fixed_clip("yu-noise-step", "falls by a factor after every few epochs", threshold, noise)


def yu_noise_polynomial(
    threshold: float = 1.0,
    end: float = 0.2,
    power: float = 3.0,
    period: int = 100,
    multiplier: float | None = None,
) -> Recipe:
    """DP-SGD with noise that falls to an end value as a power of the epochs that are left."""
    noise = PolynomialDecay(end=end, power=power, period=period, multiplier=multiplier)
    return _with_fixed_clip("yu-noise-polynomial", "falls polynomially to an end value", threshold, noise)


def zhang(threshold: float = 1.0, factor: float = 0.999, multiplier: float | None = None) -> Recipe:
    """DP-SGD with noise whose variance falls geometrically with the steps."""
    noise = GeometricDecay(factor=factor, multiplier=multiplier)
    return _with_fixed_clip("zhang", "variance falls by the factor R at each step", threshold, noise)


def hong(threshold: float = 1.0, contraction: float | None = None, multiplier: float | None = None) -> Recipe:
    """DP-SGD with noise in proportion to the inverse fourth root of its influence on the final loss."""
    noise = InfluenceWeighted(contraction=contraction, multiplier=multiplier)
    return _with_fixed_clip("hong", "follows its influence on the final loss", threshold, noise)


def fay_fixed(threshold: float = 1.0, multiplier: float | None = None) -> Recipe:
    """DP-SGD with noise in proportion to a bound on the gradient's norm that is known in advance."""
    noise = PrivacyUtility(multiplier=multiplier)
    return _with_fixed_clip("fay-fixed", "follows a bound on the gradient's norm", threshold, noise)
