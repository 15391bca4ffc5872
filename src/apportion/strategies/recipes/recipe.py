"""What a recipe is: one choice for each role, and what a person should know about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeGuard

from apportion import validate
from apportion.errors import InvalidArgument
from apportion.strategies.clip import Fixed, Sequence
from apportion.strategies.context import Context
from apportion.strategies.descriptions import as_parameter, build, describe, parameters_of
from apportion.strategies.noise import Constant
from apportion.strategies.people.individual import IndividualFilter
from apportion.strategies.roles import (
    AskingUpdate,
    Clip,
    FeedbackNoise,
    MultisetNoise,
    NoiseSchedule,
    People,
    SteeringUpdate,
    Update,
)
from apportion.strategies.tempering import Temper
from apportion.strategies.update import Plain
from apportion.strategies.update.update_chain import ORDER, Chain, with_part

ROLES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "clip": ((Clip,), "apportion.clip.Fixed(threshold=1.0)"),
    "noise": ((NoiseSchedule, FeedbackNoise), "apportion.noise.Constant()"),
    "update": ((Update, SteeringUpdate), "apportion.update.Plain(average=0.99)"),
    "people": ((People,), "apportion.people.Scale()"),
}
"""The protocols of each role, and an example of what fills it."""
PART_PARAMETERS = tuple(f"{kind.__name__}.{name}" for kind in ORDER for name in parameters_of("update", kind.__name__))
"""What can be set in an update beside its own parameters: those of a part that is then added to it."""
Adapted = Literal["budget", "clip", "rate"]

Price = Literal["constant", "scheduled", "shared", "multiset", "filter", "none"]
PRICES: Mapping[Price, str] = {
    "constant": "the same (q, z) at every step, declared in advance; exact composition of subsampled Gaussians",
    "scheduled": "(q, z_t) at step t, all declared in advance; exact composition of subsampled Gaussians",
    "shared": "the same (q, z) at every step, declared in advance; the statistics that move the threshold take a share of the step's "
    "own z, so they cost nothing beside it; exact composition of subsampled Gaussians",
    "multiset": "how often each (q, z) may occur is declared in advance, their order follows released values; exact composition of all",
    "filter": "(q, z) follows released values; a filter refuses what would exceed the declared (ε, δ), the price whatever was spent",
    "none": "nothing is protected, so nothing is paid",
}
"""The rules by which recipes are paid for."""


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


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One choice for each role. Two recipes are equal if their choices are, whatever they are called.

    Args:
        clip: how far one record may move the sum; `None` only for training without privacy. One that also has multipliers, as
            `FixedDeviation` does, fills the noise role too.
        noise: the multipliers; constant if it is left out.
        update: what the optimiser is given of a released gradient.
        people: rates and thresholds of groups, for a budget that has groups; `Scale` if it is left out there.
        model: a change to the model, which whoever trains makes before training: `apportion.temper`.
        name: as on the command line.
        summary: one line.
        adapts: what changes during a run: how the budget is divided, the threshold, the learning rate.
        price: the rule by which it is paid for, a key of `PRICES`.
        needs: what a person must bring besides the private records; empty if nothing.

    Examples:
        >>> import apportion as ap
        >>> recipe = ap.Recipe(clip=ap.clip.Decay(start=2.0))
        >>> recipe.noise, recipe.update
        (Constant(multiplier=None), Plain(average=None, divide_by_clip=False))
    """

    clip: Clip | None = field(default_factory=Fixed)
    noise: NoiseSchedule | FeedbackNoise | None = None
    update: Update | SteeringUpdate = field(default_factory=Plain)
    people: People | None = None
    model: Temper | None = None
    name: str = field(default="custom", compare=False)
    summary: str = field(default="", compare=False)
    adapts: tuple[Adapted, ...] = field(default=(), compare=False)
    price: Price = field(default="constant", compare=False)
    needs: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isprintable():  # it is written to files when a run ends
            raise InvalidArgument("name", validate.shown(self.name), "it is not a printable text", 'Try name="mine"')
        if self.clip is None:
            if self.noise is not None:
                raise InvalidArgument("noise", validate.shown(self.noise), "there is no clip", "Pass clip= as well")
            return
        require_role("clip", self.clip)
        validate.store(self, noise=_resolve_noise(self.clip, self.noise))
        require_role("noise", self.noise)
        require_role("update", self.update)
        if self.people is not None:
            require_role("people", self.people)
        if isinstance(self.update, AskingUpdate) and isinstance(self.noise, MultisetNoise):
            raise InvalidArgument(
                "update",
                type(self.update).__name__,
                f"it asks questions whose number and price follow released values, and {type(self.noise).__name__} spends declared "
                "tokens, which no rule covers together",
                "Use a schedule, which a filter covers with it, or another update, which a multiset covers with that noise",
            )

    @property
    def private(self) -> bool:
        return self.clip is not None

    @property
    def needs_filter(self) -> bool:
        """Whether what a step costs, or how many there are, follows released values in a way that no declared tokens cover."""
        feedback = isinstance(self.noise, FeedbackNoise) and not isinstance(self.noise, MultisetNoise)
        return feedback or isinstance(self.update, AskingUpdate) or isinstance(self.people, IndividualFilter)

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
                f"it needs {self.needs or 'thresholds'}, and has none",
                "Find them with `apportion search`, then pass --set clip.file=FILE, or in Python recipes.lin_transfer(file=...)",
            )

    def parameters(self, role: str) -> tuple[str, ...]:
        """The hyper-parameters of a role, by name; none if the recipe does not fill it."""
        return tuple(self.values(role))

    def values(self, role: str) -> dict[str, Any]:
        """The hyper-parameters of a role and their values; those of a part of the update by its kind, as in `LowPass.a`."""
        strategy: Any = getattr(self, role) if self.private else None
        if isinstance(strategy, Chain):
            return {
                f"{type(part).__name__}.{name}": value
                for part in strategy.parts
                for name, value in _values(part).items()
            }
        return _values(strategy)

    def with_settings(self, settings: Mapping[str, Any]) -> Recipe:
        """The same recipe with hyper-parameters replaced, e.g. {"clip.threshold": 0.5}.

        {"update.kind": "my_project:Filter", "update.gain": 0.2} puts a strategy of one's own into a role, and
        {"update.LearningRate.warm_up": 0.05} changes a part of the update, or adds it to the one that is there.
        """
        changed: dict[str, dict[str, Any]] = {}
        for key, value in settings.items():
            role, _, parameter = key.partition(".")
            validate.known(f"set {key}", role, ROLES, "it names no role")
            if not self.private:
                raise InvalidArgument(
                    f"set {key}", validate.shown(value), f"the recipe {self.name!r} has no {role}", "Leave it out"
                )
            changed.setdefault(role, {})[parameter] = value
        roles = {role: self._replaced(role, values) for role, values in changed.items()}
        if _owns_both(roles.get("clip")):
            roles.setdefault("noise", None)  # which is then the clip's
        return dataclasses.replace(self, **roles)

    def _replaced(self, role: str, values: Mapping[str, Any]) -> Any:
        parts: dict[str, dict[str, Any]] = {}
        own = dict(values)
        for key, value in values.items() if role == "update" else ():
            part, dot, parameter = key.partition(".")
            if dot or isinstance(value, Mapping):  # of the command line, or of a file
                parts.setdefault(part, {}).update({parameter: value} if dot else value)
                del own[key]
        strategy = getattr(self, role)
        if "kind" in own:
            strategy = build(role, own)
        elif own:
            known = [one.name for one in dataclasses.fields(strategy)] if dataclasses.is_dataclass(strategy) else []
            for parameter in own:
                reason = f"{type(strategy).__name__} has no such parameter"
                validate.known(f"set {role}.{parameter}", parameter, known, reason)
            strategy = dataclasses.replace(strategy, **{name: as_parameter(role, value) for name, value in own.items()})
        for part, settings in parts.items():
            strategy = _with_part(strategy, part, settings)
        return strategy

    def describe(self) -> dict[str, Any]:
        """The choices as data. `None` for the noise of a clip that owns both roles."""
        roles = {role: None if (one := getattr(self, role)) is None else describe(one) for role in (*ROLES, "model")}
        if isinstance(self.noise, NoiseOf):
            roles["noise"] = None
        return {"name": self.name, **roles}


def _values(strategy: Any) -> dict[str, Any]:
    if strategy is None or not dataclasses.is_dataclass(strategy):
        return {}
    return {one.name: getattr(strategy, one.name) for one in dataclasses.fields(strategy)}


def _with_part(update: Any, part: str, settings: Mapping[str, Any]) -> Any:
    """The update with a part changed or added that is named in settings."""
    kinds = {kind.__name__: kind for kind in ORDER}
    validate.known(f"set update.{part}", part, kinds, "there is no such part of an update")
    for parameter in settings:
        reason = f"{part} has no such parameter"
        validate.known(f"set update.{part}.{parameter}", parameter, parameters_of("update", part), reason)
    if isinstance(update, SteeringUpdate):
        reason = f"{type(update).__name__} sets the weights itself, so that there is no gradient for others to work on"
        raise InvalidArgument(f"set update.{part}", dict(settings), reason, "Leave it out")
    return with_part(update, kinds[part], {name: as_parameter("update", value) for name, value in settings.items()})


def require_role(role: str, strategy: object) -> None:
    """Refuse what does not fill a role."""
    kinds, example = ROLES[role]
    if isinstance(strategy, type) or not isinstance(strategy, kinds):
        raise InvalidArgument(
            role,
            validate.shown(strategy),
            f"it is not {'an' if role == 'update' else 'a'} {role} strategy",
            f"Pass for example {role}={example}",
        )


def _resolve_noise(clip: Clip, noise: NoiseSchedule | FeedbackNoise | None) -> NoiseSchedule | FeedbackNoise:
    """What fills the noise role. Refuses two strategies that would own one role."""
    if _owns_both(clip):
        own = NoiseOf(clip)
        if noise not in (None, clip, own):
            raise InvalidArgument(
                "noise",
                validate.shown(noise),
                f"two strategies own one role: {type(clip).__name__} chooses the multipliers too",
                "Leave noise= out, or use another clip",
            )
        return own
    if isinstance(noise, NoiseOf):  # of a clip that was replaced
        return Constant()
    if _owns_both(noise):
        raise InvalidArgument(
            "noise",
            validate.shown(noise),
            "it chooses thresholds too, so it cannot fill this role alone",
            "Pass it as clip= and leave noise= out",
        )
    return Constant() if noise is None else noise


def _owns_both(strategy: object) -> TypeGuard[_Both]:
    return not isinstance(strategy, type) and isinstance(strategy, Clip) and isinstance(strategy, NoiseSchedule)
