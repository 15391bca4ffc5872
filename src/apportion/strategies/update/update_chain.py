"""Several updates one after the other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from apportion.errors import InvalidArgument
from apportion.request import Released
from apportion.strategies.context import Context
from apportion.strategies.roles import (
    AveragingUpdate,
    PlannedUpdate,
    RatedUpdate,
    SteeringUpdate,
    Update,
    is_optimizing,
)
from apportion.strategies.update.adamw import AdamW
from apportion.strategies.update.learning_rate import LearningRate
from apportion.strategies.update.low_pass import LowPass
from apportion.strategies.update.plain import Plain
from apportion.strategies.update.tail_average import TailAverage
from apportion.validate import Checked, checked, shown

if TYPE_CHECKING:
    from torch import Tensor


ORDER: tuple[type, ...] = (LowPass, Plain, AdamW, LearningRate, TailAverage)
"""In which parts work that are added one by one: a filter, what is divided, an optimiser, and what does not touch the gradient."""


def _read_parts(argument: str, value: Any, why: str, fix: str) -> tuple[Update, ...]:
    """A rule: updates that transform gradients. Chains among them are taken apart."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InvalidArgument(argument, shown(value), why, fix)
    for part in value:
        if isinstance(part, SteeringUpdate):
            reason = "it sets the weights itself, so that there is no gradient for others to work on"
            raise InvalidArgument(argument, type(part).__name__, reason, "Use it alone")
        if isinstance(part, type) or not isinstance(part, Update):
            raise InvalidArgument(argument, shown(part), why, fix)
    return tuple(one for part in value for one in parts_of(part))


@dataclass(frozen=True)
class Chain(Checked):
    """ĝ = part_k(… part_1(g̃)): each update is given the gradient that the one before made of the released one.

    Averages, learning rates and states of the parts stay their own; learning rates are multiplied. The order matters for those that change
    the gradient: a filter stands before AdamW.

    Args:
        parts: updates, in their order; at least one.

    Source: composition is ours.
    Guarantee: each part uses released values and public facts alone, and so do all together: they cost nothing.

    Examples:
        >>> import apportion as ap
        >>> chain = ap.update.Chain((ap.update.LowPass(), ap.update.AdamW(), ap.update.LearningRate(warm_up=0.1)))
        >>> [type(part).__name__ for part in chain.parts]
        ['LowPass', 'AdamW', 'LearningRate']
    """

    prefix = "update"
    parts: tuple[Update, ...] = checked(
        (Plain(),), _read_parts, "it is not a list of updates", "Try parts=(LowPass(), AdamW())"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.parts:
            raise InvalidArgument("update.parts", (), "there is nothing to do", "Pass at least one update, as Plain()")
        _require_one("averages", [part for part in self.parts if _averages(part)], "only one average can be the model")
        _require_one("optimises", [part for part in self.parts if is_optimizing(part)], "one of them is enough")
        for before, part in zip(self.parts, self.parts[1:], strict=False):
            if isinstance(part, AdamW) and part.corrected:
                reason = f"it knows the noise in a released gradient, and not what {type(before).__name__} makes of it"
                raise InvalidArgument(
                    "update.parts", "AdamW(corrected=True)", reason, "Put it first, or do not correct"
                )

    @property
    def optimizing(self) -> bool:
        """Whether a part takes the place of the optimiser."""
        return any(is_optimizing(part) for part in self.parts)

    def rate(self, context: Context) -> float:
        """The product of the parts' factors of the learning rate."""
        return math.prod(part.rate(context) for part in self.parts if isinstance(part, RatedUpdate))

    def init(self, parameters: Mapping[str, Tensor]) -> list[Any]:
        """The states of the parts."""
        return [part.init(parameters) for part in self.parts]

    def begin(self, state: Any, context: Context) -> list[Any]:
        """Those that follow the plan learn of it."""
        return [
            part.begin(own, context) if isinstance(part, PlannedUpdate) else own
            for part, own in zip(self.parts, state, strict=True)
        ]

    def transform(self, state: Any, released: Released) -> Mapping[str, Tensor]:
        """What the last part makes of it."""
        for part, own in zip(self.parts, state, strict=True):
            released = replace(released, gradient=part.transform(own, released))
        return released.gradient

    def observe(self, state: Any, released: Released, parameters: Mapping[str, Tensor]) -> list[Any]:
        """Each part learns of the gradient that it was given, and of the weights to which all of them led."""
        following = []
        for index, (part, own) in enumerate(zip(self.parts, state, strict=True), start=1):
            following.append(part.observe(own, released, parameters))
            if index < len(self.parts):
                released = replace(released, gradient=part.transform(own, released))
        return following

    def averaged(self, state: Any) -> Mapping[str, Tensor] | None:
        """The average of the part that keeps one."""
        kept = [
            part.averaged(own)
            for part, own in zip(self.parts, state, strict=True)
            if isinstance(part, AveragingUpdate) and _averages(part)
        ]
        return kept[0] if kept else None


def parts_of(update: Any) -> tuple[Any, ...]:
    """The parts of a chain; any other update is its own only part."""
    return update.parts if isinstance(update, Chain) else (update,)


def with_part(update: Any, kind: type, settings: Mapping[str, Any]) -> Any:
    """The update with hyper-parameters of its part of this kind replaced, or with such a part added in its place of `ORDER`."""
    parts, name = list(parts_of(update)), kind.__name__
    found = [index for index, part in enumerate(parts) if type(part) is kind]
    if len(found) > 1:
        reason = f"the update has {len(found)} parts of this kind"
        raise InvalidArgument(
            f"update.{name}", shown(dict(settings)), reason, "Set update.parts, which names all of them"
        )
    changed = replace(parts[found[0]], **settings) if found else kind(**settings)
    if found:
        parts[found[0]] = changed
    else:
        later = [index for index, part in enumerate(parts) if type(part) in ORDER[ORDER.index(kind) + 1 :]]
        parts.insert(later[0] if later else len(parts), changed)
    return Chain(tuple(parts)) if len(parts) > 1 else parts[0]


def _averages(part: Update) -> bool:
    """Whether a part keeps an average; one of a person's own does if it has the method."""
    return isinstance(part, AveragingUpdate) and not (isinstance(part, Plain) and part.average is None)


def _require_one(does: str, found: Sequence[Update], why: str) -> None:
    if len(found) > 1:
        names = " and ".join(type(part).__name__ for part in found)
        raise InvalidArgument("update.parts", names, f"each of them {does}, and {why}", "Leave one of them out")
