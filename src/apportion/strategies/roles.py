"""Who fills the roles of a run: what was given, the defaults, and strategies that own two roles at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeGuard

from apportion import validate
from apportion.errors import InvalidArgument
from apportion.strategies.clip import Clip, Fixed
from apportion.strategies.context import Context
from apportion.strategies.noise import Constant, NoiseSchedule


class _Both(Clip, NoiseSchedule, Protocol):
    """A strategy that owns two roles."""


@dataclass(frozen=True)
class NoiseOf:
    """The noise role of a clip that owns both: its multipliers without what makes it a clip."""

    clip: _Both

    @property
    def multiplier(self) -> float | None:
        return self.clip.multiplier

    def relative(self, context: Context) -> float:
        return self.clip.relative(context)


def resolve_roles(clip: Clip | None, noise: NoiseSchedule | None) -> tuple[Clip, NoiseSchedule]:
    """The strategy of each role.

    Args:
        clip: `Fixed()` if it is `None`. One that also has multipliers, as `FixedDeviation` does, fills the noise role too.
        noise: `Constant()` if it is `None`.

    Raises:
        InvalidArgument: if two strategies would own one role.
    """
    if _owns_both(clip):
        own = NoiseOf(clip)
        if noise not in (None, clip, own):
            raise InvalidArgument(
                "noise",
                validate.shown(noise),
                f"two strategies own one role: {type(clip).__name__} chooses the multipliers too",
                "Leave noise= out, or use another clip",
            )
        return clip, own
    if _owns_both(noise):
        raise InvalidArgument(
            "noise",
            validate.shown(noise),
            "it chooses thresholds too, so it cannot fill this role alone",
            "Pass it as clip= and leave noise= out",
        )
    return Fixed() if clip is None else clip, Constant() if noise is None else noise


def _owns_both(strategy: object) -> TypeGuard[_Both]:
    return not isinstance(strategy, type) and isinstance(strategy, Clip) and isinstance(strategy, NoiseSchedule)
