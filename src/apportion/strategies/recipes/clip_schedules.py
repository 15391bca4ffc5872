"""Thresholds that fall by a law known in advance, or were found on public data."""

from __future__ import annotations

from pathlib import Path

from apportion.strategies.clip import Decay, LinearDecay, Sequence
from apportion.strategies.noise import Constant
from apportion.strategies.recipes.recipe import Recipe


def lin_decay(start: float = 1.0, power: float = 0.5, minimum: float = 1e-3, multiplier: float | None = None) -> Recipe:
    """DP-SGD with a threshold that decays by epoch."""
    return Recipe(
        name="lin-decay",
        summary="clip decays as C₀/t^a with the epochs, constant noise",
        clip=Decay(start=start, power=power, minimum=minimum),
        noise=Constant(multiplier=multiplier),
        adapts=("clip",),
    )


def lin_transfer(
    thresholds: tuple[float, ...] = (), file: str | Path | None = None, multiplier: float | None = None
) -> Recipe:
    """DP-SGD with a threshold for each epoch that was found on public data. Without thresholds it can be listed, not run."""
    return Recipe(
        name="lin-transfer",
        summary="clip by epoch as found on public data, constant noise",
        clip=Sequence(thresholds=thresholds, file=file),
        noise=Constant(multiplier=multiplier),
        adapts=("clip",),
        needs="a file of thresholds that were found on public data",
    )


def yu_clip(start: float = 1.0, ramp_steps: int | None = None, multiplier: float | None = None) -> Recipe:
    """DP-SGD with a threshold that falls to its half along a ramp."""
    return Recipe(
        name="yu-clip",
        summary="clip falls to its half along a ramp, constant noise",
        clip=LinearDecay(start=start, ramp_steps=ramp_steps),
        noise=Constant(multiplier=multiplier),
        adapts=("clip",),
    )
