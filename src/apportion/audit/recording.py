"""What instruments write down of a run: plain data, which can be sent from one process to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from apportion.audit.state import State
from apportion.event import Event
from apportion.releases import Selection
from apportion.request import Released


@dataclass(frozen=True, eq=False)
class NoiseCall:
    """One call of the mechanism: what it was given and what it answered, both kept in float64."""

    exact_sum: Tensor
    standard_deviation: float
    divisor: float
    answer: Tensor
    own_stream: bool
    dtype: torch.dtype
    """In which the sum was given, and the answer rounded."""


@dataclass(frozen=True, eq=False)
class ChoiceCall:
    """One selection: the exact summed losses or gains, and the index that was chosen."""

    totals: Tensor
    release: Selection
    answer: int | None
    own_stream: bool


@dataclass(eq=False)
class Step:
    """One draw, from its coins to its answer.

    Args:
        before: the public state when the coins were tossed.
        charged: the events in the ledger by then.
        coins: (how many, with which probabilities) for every toss.
        calls, choices: of the mechanisms, in their order.
        members, read: the records of those whose coin fell true, and those that were read.
        forms: of each released tensor all that is to be seen of it but its numbers.
    """

    before: State
    charged: tuple[Event, ...]
    coins: list[tuple[int, tuple[float, ...]]] = field(default_factory=list)
    members: set[int] = field(default_factory=set)
    read: set[int] = field(default_factory=set)
    calls: list[NoiseCall] = field(default_factory=list)
    choices: list[ChoiceCall] = field(default_factory=list)
    released: Released | None = None
    forms: dict[str, tuple[object, ...]] = field(default_factory=dict)


@dataclass(eq=False)
class Recording:
    """One run, from its first draw to its end.

    Args:
        steps: its draws.
        after: the public state at the end.
        charged: all events in the ledger by then.
        failure: the exception that ended it, as text.
        parts: of a run of several ranks, what each of them did; empty for a process alone.
    """

    steps: list[Step] = field(default_factory=list)
    after: State = field(default_factory=dict)
    charged: tuple[Event, ...] = ()
    failure: str | None = None
    parts: Sequence[Recording] = ()

    def states(self) -> list[State]:
        """The public state before every step and at the end."""
        return [*(step.before for step in self.steps), self.after]
