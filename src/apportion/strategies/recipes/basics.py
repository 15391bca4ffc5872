"""Training without privacy, plain DP-SGD, and what we would use."""

from __future__ import annotations

from apportion.strategies.clip import Decay, Fixed
from apportion.strategies.noise import Constant
from apportion.strategies.recipes.recipe import Recipe
from apportion.strategies.temper import Temper
from apportion.strategies.update import Plain


def non_private() -> Recipe:
    """Ordinary training, for comparison: no clipping, no noise, no guarantee."""
    return Recipe(
        "non-private",
        "ordinary training: no clipping, no noise, no guarantee",
        None,
        None,
        price="none",
    )


def default(start: float = 2.0, average: float = 0.9, multiplier: float | None = None) -> Recipe:
    """What we would use today: a threshold that decays by epoch, and averaged weights.

    It is chosen by measurement and will follow further ones, so name another recipe where a result must stay reproducible.
    """
    return Recipe(
        "default",
        "our choice today, which will follow measurements: clip decays by epoch, constant noise, averaged weights",
        Decay(start=start),
        Constant(multiplier=multiplier),
        Plain(average=average),
        adapts=("clip",),
    )


def abadi(threshold: float = 1.0, multiplier: float | None = None) -> Recipe:
    """DP-SGD as first published: a fixed threshold and constant noise."""
    return Recipe(
        "abadi",
        "fixed clip, constant noise: plain DP-SGD",
        Fixed(threshold=threshold),
        Constant(multiplier=multiplier),
    )


def papernot(
    threshold: float = 0.5,
    scale: float = 2.0,
    temperature: float = 2.0,
    offset: float = 1.0,
    multiplier: float | None = None,
) -> Recipe:
    """Plain DP-SGD on a model whose ReLU layers became tempered sigmoids."""
    return Recipe(
        "papernot",
        "plain DP-SGD, with tempered sigmoids in the place of ReLU",
        Fixed(threshold=threshold),
        Constant(multiplier=multiplier),
        model=Temper(scale=scale, temperature=temperature, offset=offset),
    )
