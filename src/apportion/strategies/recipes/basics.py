"""Training without privacy, plain DP-SGD, and what we would use."""

from __future__ import annotations

from apportion.strategies.clip import Fixed, SensitivityDecay
from apportion.strategies.noise import Constant, GrowingMu
from apportion.strategies.recipes.recipe import Recipe
from apportion.strategies.tempering import Temper
from apportion.strategies.update import Plain


def non_private() -> Recipe:
    """Ordinary training, for comparison: no clipping, no noise, no guarantee."""
    return Recipe(
        name="non-private",
        summary="ordinary training: no clipping, no noise, no guarantee",
        clip=None,
        price="none",
    )


def default(
    start: float = 1.0,
    clip_ratio: float = 3.33,
    noise_ratio: float = 1.25,
    average: float = 0.9,
    multiplier: float | None = None,
) -> Recipe:
    """What we would use today: threshold and noise fall over the run, as in `du_dynamic`, and the weights are averaged.

    It was the best on Fashion-MNIST and as good as others on MNIST at ε near 3 (docs/choosing.md). It will follow further
    measurements, so name another recipe where a result must stay reproducible.
    """
    return Recipe(
        name="default",
        summary="our choice today, which will follow measurements: clip and noise fall, averaged weights",
        clip=SensitivityDecay(start=start, ratio=clip_ratio),
        noise=GrowingMu(ratio=noise_ratio, multiplier=multiplier),
        update=Plain(average=average),
        adapts=("budget", "clip"),
        price="scheduled",
    )


def abadi(threshold: float = 1.0, multiplier: float | None = None) -> Recipe:
    """DP-SGD as first published: a fixed threshold and constant noise."""
    return Recipe(
        name="abadi",
        summary="fixed clip, constant noise: plain DP-SGD",
        clip=Fixed(threshold=threshold),
        noise=Constant(multiplier=multiplier),
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
        name="papernot",
        summary="plain DP-SGD, with tempered sigmoids in the place of ReLU",
        clip=Fixed(threshold=threshold),
        noise=Constant(multiplier=multiplier),
        model=Temper(scale=scale, temperature=temperature, offset=offset),
    )
