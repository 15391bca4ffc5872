"""Plain DP-SGD with something else made of the released gradients."""

from __future__ import annotations

from apportion.strategies.clip import Fixed
from apportion.strategies.noise import Constant
from apportion.strategies.recipes.recipe import Recipe
from apportion.strategies.update import AdamW, LowPass


def adamw(threshold: float = 1.0, decay: float = 0.01, multiplier: float | None = None) -> Recipe:
    """DP-AdamW: a step for each coordinate by the squares of its released gradients, and decoupled weight decay."""
    return Recipe(
        name="adamw",
        summary="fixed clip, constant noise, AdamW on released gradients",
        clip=Fixed(threshold=threshold),
        noise=Constant(multiplier=multiplier),
        update=AdamW(decay=decay),
        adapts=("rate",),
    )


def adamw_bc(
    threshold: float = 1.0, decay: float = 0.01, floor: float = 0.01, multiplier: float | None = None
) -> Recipe:
    """DP-AdamW-BC: likewise, with the variance of the noise taken off these squares."""
    return Recipe(
        name="adamw-bc",
        summary="fixed clip, constant noise, AdamW whose second moment is corrected for the noise",
        clip=Fixed(threshold=threshold),
        noise=Constant(multiplier=multiplier),
        update=AdamW(decay=decay, corrected=True, floor=floor),
        adapts=("rate",),
    )


def doppler(
    threshold: float = 1.0,
    a: tuple[float, ...] = (-0.9,),
    b: tuple[float, ...] = (0.1,),
    multiplier: float | None = None,
) -> Recipe:
    """DP-SGD on gradients that went through a low-pass filter over the steps."""
    return Recipe(
        name="doppler",
        summary="fixed clip, constant noise, low-pass filter of released gradients",
        clip=Fixed(threshold=threshold),
        noise=Constant(multiplier=multiplier),
        update=LowPass(a=a, b=b),
    )
