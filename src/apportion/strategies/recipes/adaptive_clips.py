"""Thresholds that follow released values, and clips that need no threshold."""

from __future__ import annotations

from typing import Literal

from apportion.strategies.clip import AdaClip, Automatic, LeastError, NormBased, NormPercentile, Quantile
from apportion.strategies.noise import Constant
from apportion.strategies.recipes.recipe import Recipe
from apportion.strategies.update import Plain


def andrew(
    start: float = 0.1, quantile: float = 0.5, count_noise: float | None = None, multiplier: float | None = None
) -> Recipe:
    """DP-SGD with a threshold that tracks a quantile of the gradient norms."""
    return Recipe(
        name="andrew",
        summary="clip tracks a quantile of the norms by noisy counts, constant noise",
        clip=Quantile(start=start, quantile=quantile, count_noise=count_noise),
        noise=Constant(multiplier=multiplier),
        adapts=("clip",),
        price="shared",
    )


def adaclip(floor: float = 1e-5, cap: float = 1e-3, multiplier: float | None = None) -> Recipe:
    """DP-SGD in coordinates that are scaled one by one, from released gradients."""
    return Recipe(
        name="adaclip",
        summary="each coordinate has its own scale, learnt from released gradients; constant noise",
        clip=AdaClip(floor=floor, cap=cap),
        noise=Constant(multiplier=multiplier),
        adapts=("clip",),
    )


def van_der_veen(
    start: float = 1.0, proportion: float = 1.0, share: float = 0.05, multiplier: float | None = None
) -> Recipe:
    """DP-SGD with a threshold for each layer, in proportion to its noisy mean norm.

    The thresholds wander far, so the optimiser gets the gradient divided by them: otherwise the steps would wander too.
    """
    return Recipe(
        name="van-der-veen",
        summary="clip of each layer follows its noisy mean norm, constant noise",
        clip=NormBased(start=start, proportion=proportion, share=share, groups="layer"),
        noise=Constant(multiplier=multiplier),
        update=Plain(divide_by_clip=True),
        adapts=("clip",),
        price="shared",
    )


def he_global(
    start: float = 1.0, quantile: float = 0.5, share: float = 0.01, multiplier: float | None = None
) -> Recipe:
    """DP-SGD with a quantile for each layer, and the same noise on every coordinate."""
    return _he("global", start, quantile, share, multiplier)


def he_equal(start: float = 1.0, quantile: float = 0.5, share: float = 0.01, multiplier: float | None = None) -> Recipe:
    """DP-SGD with a quantile for each layer, and noise in proportion to the layer's threshold."""
    return _he("equal", start, quantile, share, multiplier)


def _he(
    allocation: Literal["global", "equal"], start: float, quantile: float, share: float, multiplier: float | None
) -> Recipe:
    noise = {"global": "the same noise everywhere", "equal": "noise in proportion to it"}[allocation]
    return Recipe(
        name=f"he-{allocation}",
        summary=f"clip of each layer tracks a quantile of its norms, {noise}",
        clip=Quantile(start=start, quantile=quantile, share=share, groups="layer", allocation=allocation),
        noise=Constant(multiplier=multiplier),
        adapts=("clip",),
        price="shared",
    )


def auto_s(threshold: float = 1.0, stabiliser: float = 0.01, multiplier: float | None = None) -> Recipe:
    """DP-SGD with gradients scaled to nearly the same norm."""
    return Recipe(
        name="auto-s",
        summary="gradients are normalised instead of clipped, constant noise",
        clip=Automatic(threshold=threshold, stabiliser=stabiliser),
        noise=Constant(multiplier=multiplier),
        adapts=("clip",),
    )


def dc_sgd_p(
    start: float = 0.1, percentile: float = 0.5, share: float = 0.05, multiplier: float | None = None
) -> Recipe:
    """DP-SGD with a threshold that is a percentile of the gradient norms, from a noisy histogram of them."""
    return Recipe(
        name="dc-sgd-p",
        summary="clip is a percentile of a noisy histogram of the norms, constant noise",
        clip=NormPercentile(start=start, percentile=percentile, share=share),
        noise=Constant(multiplier=multiplier),
        adapts=("clip",),
        price="shared",
    )


def dc_sgd_e(start: float = 0.1, share: float = 0.05, multiplier: float | None = None) -> Recipe:
    """DP-SGD with the threshold of the least error between noise and clipping, from a noisy histogram of the norms."""
    return Recipe(
        name="dc-sgd-e",
        summary="clip balances noise and clipping error by a noisy histogram of the norms, constant noise",
        clip=LeastError(start=start, share=share),
        noise=Constant(multiplier=multiplier),
        adapts=("clip",),
        price="shared",
    )
