"""What noise schedules have in common: the scale, the pace, the floor and how far apart multipliers may lie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal, get_args

from apportion.errors import InvalidArgument
from apportion.strategies.context import Context
from apportion.validate import Checked, check, one_of, positive, probability

Pace = Literal["epoch", "step"]
WIDEST = 1000.0
"""The largest multiplier of a schedule divided by its smallest. Beyond, steps are nothing but noise or hardly protected."""
MULTIPLIER = check(positive, "without noise there is no privacy", "Leave it out to fit the budget")


@dataclass(frozen=True)
class Schedule(Checked, ABC):
    """z_t = σ·r_t, where σ is the scale and r_t = `relative(context)` > 0 the shape.

    Args:
        multiplier: σ, as published. `None`: the smallest that the budget allows. If it is given, the schedule is priced as it is, and a
            run keeps as many of its steps as the budget affords.

    Guarantee: r_t depends on public facts only, so the multipliers are fixed before any record is read and compose as they are.
    """

    prefix = "noise"
    multiplier: float | None = field(default=None, kw_only=True, metadata=MULTIPLIER)

    @abstractmethod
    def relative(self, context: Context) -> float:
        """r_t."""


@dataclass(frozen=True)
class Paced(Schedule, ABC):
    """A schedule in t = 0, 1, 2, …, the number of epochs, or steps, that are over.

    Args:
        per: "epoch": r_t changes after every round(1/q) steps. "step": after every step.
    """

    per: Pace = field(
        default="epoch",
        kw_only=True,
        metadata=check(one_of(*get_args(Pace)), "noise changes with every epoch or with every step"),
    )

    def elapsed(self, context: Context) -> int:
        """t. The context counts from 1, the first epoch and the first step have t = 0."""
        return (context.epoch if self.per == "epoch" else context.step) - 1


@dataclass(frozen=True)
class Decay(Paced, ABC):
    """r_t = max(f(t), floor), where f falls from f(0) = 1.

    Args:
        minimum: the floor, as a part of the first multiplier. A decay goes to 0 in a long run, and the price to infinity.
    """

    minimum: float = field(
        default=0.01,
        kw_only=True,
        metadata=check(probability, "it is a part of the first multiplier, and 0 would be no noise"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_range("noise.minimum", self.minimum, 1 / self.minimum)

    @abstractmethod
    def decay(self, elapsed: int) -> float:
        """f(t)."""

    def relative(self, context: Context) -> float:
        return max(self.decay(self.elapsed(context)), self.minimum)


def require_range(argument: str, value: float, ratio: float) -> None:
    """Refuse `value` if it lets the multipliers differ by a larger `ratio` than `WIDEST`."""
    if ratio > WIDEST * (1 + 1e-9):
        raise InvalidArgument(
            argument,
            value,
            f"the first multiplier would be more than {WIDEST:g} times the last, and its steps nothing but noise",
            f"Keep the ratio at {WIDEST:g} or below",
        )
