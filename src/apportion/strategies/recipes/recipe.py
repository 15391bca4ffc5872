"""What a recipe is: one choice for each role, and what a person should know about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from apportion import validate
from apportion.errors import InvalidArgument
from apportion.strategies.clip import Clip, Sequence
from apportion.strategies.noise import NoiseSchedule
from apportion.strategies.tempering import Temper
from apportion.strategies.update import Plain

ROLES = ("clip", "noise", "update")
Adapted = Literal["budget", "clip", "rate"]

Price = Literal["constant", "scheduled", "shared", "none"]
PRICES: Mapping[Price, str] = {
    "constant": "the same (q, z) at every step, declared in advance; exact composition of subsampled Gaussians",
    "scheduled": "(q, z_t) at step t, all declared in advance; exact composition of subsampled Gaussians",
    "shared": "the same (q, z) at every step, declared in advance; the statistics that move the threshold take a share of the step's "
    "own z, so they cost nothing beside it; exact composition of subsampled Gaussians",
    "none": "nothing is protected, so nothing is paid",
}
"""The rules by which recipes are paid for."""


@dataclass(frozen=True)
class Recipe:
    """One choice for each role. `clip` and `noise` are `None` only for training without privacy.

    Args:
        name: as on the command line.
        summary: one line.
        clip, noise, update: the strategies.
        model: a change to the model, which whoever trains makes before training: `apportion.temper`.
        adapts: what changes during a run: how the budget is divided, the threshold, the learning rate.
        price: the rule by which it is paid for, a key of `PRICES`.
        needs: what a person must bring besides the private records; empty if nothing.
    """

    name: str
    summary: str
    clip: Clip | None
    noise: NoiseSchedule | None
    update: Plain = field(default_factory=Plain)
    model: Temper | None = None
    adapts: tuple[Adapted, ...] = ()
    price: Price = "constant"
    needs: str = ""

    @property
    def private(self) -> bool:
        return self.clip is not None

    @property
    def complete(self) -> bool:
        """Whether it can run as it is: `False` while it waits for what it `needs`."""
        return not (isinstance(self.clip, Sequence) and not self.clip.thresholds)

    def require_complete(self) -> None:
        """Refuse a recipe that waits for thresholds, before any data is read."""
        if not self.complete:
            raise InvalidArgument(
                "recipe",
                self.name,
                f"it needs {self.needs}, and has none",
                "Find them with `apportion search`, then pass --set clip.file=FILE, or in Python recipes.lin_transfer(file=...)",
            )

    def parameters(self, role: str) -> tuple[str, ...]:
        """The hyper-parameters of a role, by name; none if the recipe does not fill it."""
        strategy: Any = getattr(self, role) if self.private else None
        return () if strategy is None else tuple(one.name for one in dataclasses.fields(strategy))

    def with_settings(self, settings: Mapping[str, Any]) -> Recipe:
        """The same recipe with hyper-parameters replaced, e.g. {"clip.threshold": 0.5}."""
        changed: dict[str, dict[str, Any]] = {}
        for key, value in settings.items():
            role, _, parameter = key.partition(".")
            validate.known(f"set {key}", role, ROLES, "it names no role")
            if not self.private:
                raise InvalidArgument(
                    f"set {key}", validate.shown(value), f"the recipe {self.name!r} has no {role}", "Leave it out"
                )
            kind = type(getattr(self, role)).__name__
            validate.known(f"set {key}", parameter, self.parameters(role), f"{kind} has no such parameter")
            changed.setdefault(role, {})[parameter] = value
        replaced = {role: dataclasses.replace(getattr(self, role), **values) for role, values in changed.items()}
        return dataclasses.replace(self, **replaced)
