"""The named combinations of the literature: one choice for each role.

`ap.recipes.lin_decay(start=0.5)` in Python, `--recipe lin-decay --set clip.start=0.5` on the command line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from apportion import validate
from apportion.errors import InvalidArgument
from apportion.strategies.clip import Clip, Decay, Fixed, SensitivityDecay
from apportion.strategies.noise import Constant, GrowingMu, NoiseSchedule


@dataclass(frozen=True)
class Recipe:
    """One choice for each role. `clip` and `noise` are `None` only for training without privacy."""

    name: str
    summary: str
    source: str
    clip: Clip | None
    noise: NoiseSchedule | None

    @property
    def private(self) -> bool:
        return self.clip is not None

    def parameters(self, role: str) -> tuple[str, ...]:
        """The hyper-parameters of a role, by name; none if the recipe does not fill it."""
        strategy: Any = getattr(self, role)
        return () if strategy is None else tuple(field.name for field in dataclasses.fields(strategy))

    def with_settings(self, settings: Mapping[str, Any]) -> Recipe:
        """The same recipe with hyper-parameters replaced, e.g. {"clip.threshold": 0.5}."""
        changed: dict[str, Any] = {}
        for key, value in settings.items():
            role, _, parameter = key.partition(".")
            validate.known(f"set {key}", role, ("clip", "noise"), "it names no role")
            strategy = changed.get(role, getattr(self, role))
            if strategy is None:
                raise InvalidArgument(
                    f"set {key}", validate.shown(value), f"the recipe {self.name!r} has no {role}", "Leave it out"
                )
            validate.known(
                f"set {key}",
                parameter,
                [field.name for field in dataclasses.fields(strategy)],
                f"{type(strategy).__name__} has no such parameter",
            )
            changed[role] = dataclasses.replace(strategy, **{parameter: value})
        return dataclasses.replace(self, **changed)


def non_private() -> Recipe:
    """Ordinary training, for comparison: no clipping, no noise, no guarantee."""
    return Recipe("non-private", "ordinary training: no clipping, no noise, no guarantee", "", None, None)


def abadi(threshold: float = 1.0, multiplier: float | None = None) -> Recipe:
    """DP-SGD as first published: a fixed threshold and constant noise."""
    return Recipe(
        "abadi",
        "fixed clip, constant noise: plain DP-SGD",
        "Abadi et al., Deep Learning with Differential Privacy, CCS 2016",
        Fixed(threshold=threshold),
        Constant(multiplier=multiplier),
    )


def lin_decay(start: float = 1.0, power: float = 0.5, minimum: float = 1e-3, multiplier: float | None = None) -> Recipe:
    """DP-SGD with a threshold that decays by epoch."""
    return Recipe(
        "lin-decay",
        "clip decays as C₀/t^a with the epochs, constant noise",
        "Lin et al., Decay clipping",
        Decay(start=start, power=power, minimum=minimum),
        Constant(multiplier=multiplier),
    )


_DU = "Du et al., Dynamic Differential-Privacy Preserving SGD"


def du_growing(threshold: float = 1.0, ratio: float = 2.0, multiplier: float | None = None) -> Recipe:
    """DP-SGD with a fixed threshold and noise that falls, so that μ grows."""
    return Recipe(
        "du-growing",
        "fixed clip, noise falls as ρ^(−t/T)",
        f"{_DU}: growing μ",
        Fixed(threshold=threshold),
        GrowingMu(ratio=ratio, multiplier=multiplier),
    )


def du_sensitivity(start: float = 1.5, ratio: float = 2.0, multiplier: float | None = None) -> Recipe:
    """DP-SGD with a threshold that falls geometrically."""
    return Recipe(
        "du-sensitivity",
        "clip falls as ρ^(−t/T), constant noise",
        f"{_DU}: sensitivity decay",
        SensitivityDecay(start=start, ratio=ratio),
        Constant(multiplier=multiplier),
    )


def du_dynamic(
    start: float = 1.5, clip_ratio: float = 2.0, noise_ratio: float = 2.0, multiplier: float | None = None
) -> Recipe:
    """Both: the threshold falls, and the noise falls faster."""
    return Recipe(
        "du-dynamic",
        "clip and noise fall geometrically, each at its own rate",
        f"{_DU}: dynamic DP-SGD",
        SensitivityDecay(start=start, ratio=clip_ratio),
        GrowingMu(ratio=noise_ratio, multiplier=multiplier),
    )


RECIPES: Mapping[str, Callable[..., Recipe]] = {
    "non-private": non_private,
    "abadi": abadi,
    "lin-decay": lin_decay,
    "du-growing": du_growing,
    "du-sensitivity": du_sensitivity,
    "du-dynamic": du_dynamic,
}


def named(name: str) -> Recipe:
    """The recipe with this name and its default hyper-parameters."""
    return RECIPES[validate.known("recipe", name, RECIPES)]()
