"""Du et al.: less noise late in the run, smaller thresholds late in the run, or both."""

from __future__ import annotations

from apportion.strategies.clip import Fixed, SensitivityDecay
from apportion.strategies.noise import Constant, GrowingMu
from apportion.strategies.recipes.recipe import Recipe


def du_growing(threshold: float = 1.0, ratio: float = 2.0, multiplier: float | None = None) -> Recipe:
    """DP-SGD with a fixed threshold and noise that falls, so that μ grows."""
    return Recipe(
        name="du-growing",
        summary="fixed clip, noise falls as ρ^(−t/T)",
        clip=Fixed(threshold=threshold),
        noise=GrowingMu(ratio=ratio, multiplier=multiplier),
        adapts=("budget",),
        price="scheduled",
    )


def du_sensitivity(start: float = 1.5, ratio: float = 2.0, multiplier: float | None = None) -> Recipe:
    """DP-SGD with a threshold that falls geometrically."""
    return Recipe(
        name="du-sensitivity",
        summary="clip falls as ρ^(−t/T), constant noise",
        clip=SensitivityDecay(start=start, ratio=ratio),
        noise=Constant(multiplier=multiplier),
        adapts=("clip",),
    )


def du_dynamic(
    start: float = 1.5,
    ratio: float = 2.0,
    clip_ratio: float | None = None,
    noise_ratio: float | None = None,
    multiplier: float | None = None,
) -> Recipe:
    """Both: the threshold falls, and the noise falls faster. `ratio` is that of both, unless one has a ratio of its own."""
    return Recipe(
        name="du-dynamic",
        summary="clip and noise fall geometrically, each at its own rate",
        clip=SensitivityDecay(start=start, ratio=ratio if clip_ratio is None else clip_ratio),
        noise=GrowingMu(ratio=ratio if noise_ratio is None else noise_ratio, multiplier=multiplier),
        adapts=("budget", "clip"),
        price="scheduled",
    )
