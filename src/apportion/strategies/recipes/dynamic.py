"""Du et al.: less noise late in the run, smaller thresholds late in the run, or both."""

from __future__ import annotations

from apportion.strategies.clip import Fixed, SensitivityDecay
from apportion.strategies.noise import Constant, GrowingMu
from apportion.strategies.recipes.recipe import Recipe


def du_growing(threshold: float = 1.0, ratio: float = 2.0, multiplier: float | None = None) -> Recipe:
    """DP-SGD with a fixed threshold and noise that falls, so that μ grows."""
    return Recipe(
        "du-growing",
        "fixed clip, noise falls as ρ^(−t/T)",
        Fixed(threshold=threshold),
        GrowingMu(ratio=ratio, multiplier=multiplier),
        adapts=("budget",),
        price="scheduled",
    )


def du_sensitivity(start: float = 1.5, ratio: float = 2.0, multiplier: float | None = None) -> Recipe:
    """DP-SGD with a threshold that falls geometrically."""
    return Recipe(
        "du-sensitivity",
        "clip falls as ρ^(−t/T), constant noise",
        SensitivityDecay(start=start, ratio=ratio),
        Constant(multiplier=multiplier),
        adapts=("clip",),
    )


def du_dynamic(
    start: float = 1.5, clip_ratio: float = 2.0, noise_ratio: float = 2.0, multiplier: float | None = None
) -> Recipe:
    """Both: the threshold falls, and the noise falls faster."""
    return Recipe(
        "du-dynamic",
        "clip and noise fall geometrically, each at its own rate",
        SensitivityDecay(start=start, ratio=clip_ratio),
        GrowingMu(ratio=noise_ratio, multiplier=multiplier),
        adapts=("budget", "clip"),
        price="scheduled",
    )
