"""What each of many people has spent: a Rényi filter for everybody, all at once.

Where a person's gradients are short, the person moves a sum by less than the threshold C allows, and so pays less than the worst case. With
s_i·C, a bound on person i that is known before the coins are tossed and enforced by clipping, a step costs person i the curve of
(q, z/s_i), whether or not the person is drawn. A person whose filter has no room for a step is left out of it.

*Why it is valid.* Fix person i and let D, D′ differ in that person alone. Whether i takes part in a step and with which s_i follows from
i's own record and from released values; the same holds for everybody else, whose parts are therefore equal in D and D′ given what was
released. So given the past, a step is the subsampled Gaussian (q, z/s_i) if i takes part, and the same distribution on D and D′ if not.
That is a filter with i's own budget (`rules.py`), of Rényi orders or, without sampling, of μ², and its proof holds for every i at once:
nothing about the others enters. It needs that all who take part are charged, drawn or not: to charge those who were drawn alone would tell
who was, and amplification would be gone.
(Feldman and Zrnic 2021; Koskela et al. 2023.)

Everything here is secret: how much somebody has spent tells of the gradients of that person, and how many are left of everybody's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from apportion.accounting.gaussian import gaussian_epsilon
from apportion.accounting.renyi import renyi_curve
from apportion.errors import InvalidArgument
from apportion.event import Event

Floats = NDArray[np.float64]


def make_levels(floor: float, count: int) -> tuple[float, ...]:
    """`count` values of s from `floor` to exactly 1, in equal ratios. Bounds are rounded *up* to one of them."""
    steps = np.geomspace(floor, 1.0, count)[:-1]
    return (*map(float, steps), 1.0)


class Measure(Protocol):
    """How events are added up: numbers that a person's account holds, one for each Rényi order, or one."""

    def cost(self, event: Event) -> Floats:
        """What an event adds to each of them."""
        ...

    def epsilons(self, spent: Floats, delta: float) -> Floats:
        """ε(δ) of what each person, a row, has spent."""
        ...


@dataclass(frozen=True)
class RenyiMeasure:
    """Rényi divergences at these orders."""

    orders: tuple[float, ...]

    def cost(self, event: Event) -> Floats:
        return renyi_curve(event, self.orders)

    def epsilons(self, spent: Floats, delta: float) -> Floats:
        orders = np.array(self.orders)
        conversion = np.log((orders - 1) / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
        found: Floats = np.maximum(0.0, (spent + conversion).min(axis=1))
        return found


@dataclass(frozen=True)
class GaussianMeasure:
    """μ², for steps on all records (q = 1): exact."""

    def cost(self, event: Event) -> Floats:
        if event.sample_rate != 1:
            raise InvalidArgument("sample_rate", event.sample_rate, "μ² adds up without sampling only", "Use q = 1")
        return np.array([event.noise_multiplier**-2])

    def epsilons(self, spent: Floats, delta: float) -> Floats:
        return np.array([gaussian_epsilon(math.sqrt(one), delta) if one else 0.0 for one in spent[:, 0].tolist()])


class IndividualAccounts:
    """Accounts of many people.

    Args:
        people: how many there are.
        measure: how events are added up.
        allowed: for each of its numbers how much a person may spend; `None` to write down only, and leave nobody out.
        levels: the values that s may have, ascending, the last of them 1.
    """

    def __init__(self, people: int, measure: Measure, allowed: Sequence[float] | None, levels: Sequence[float]):
        self._measure, self._levels = measure, np.array(levels)
        self._allowed = None if allowed is None else np.array(allowed)
        numbers = len(measure.cost(Event(1.0, 1.0)))
        self._spent = np.zeros((people, numbers))
        self._alive = np.ones((people, numbers), dtype=bool)
        if self._allowed is not None:
            self._alive &= self._allowed >= 0
        self._level = np.full(people, len(levels) - 1)  # until it is known better: the worst case
        self.charges = 0

    def bound(self, wanted: Floats) -> None:
        """Set everybody's s to the smallest level that is not below `wanted`; 1 where nothing is known."""
        above = np.where(np.isfinite(wanted), wanted, 1.0)
        self._level = np.minimum(np.searchsorted(self._levels, above, side="left"), len(self._levels) - 1)

    @property
    def scales(self) -> Floats:
        """s_i of everybody."""
        found: Floats = self._levels[self._level]
        return found

    def charge(self, event: Event) -> NDArray[np.bool_]:
        """Charge everybody whose filter has room for `event`, by their own s. Returns who that is: only they may take part."""
        self.charges += 1
        costs = [
            self._measure.cost(Event(event.sample_rate, event.noise_multiplier / level))
            for level in self._levels.tolist()
        ]
        would = self._spent + np.array(costs)[self._level]
        if self._allowed is None:
            self._spent = would
            return np.ones(len(would), dtype=bool)
        survivors = self._alive & (would <= self._allowed)
        taking: NDArray[np.bool_] = survivors.any(axis=1)
        self._alive[taking], self._spent[taking] = survivors[taking], would[taking]
        return taking

    def charge_worst(self, event: Event) -> None:
        """Charge everybody for a step of which nothing but its event is known, as if s were 1: after a crash, no less was spent.

        Also those for whom that is too much: they may have taken part with less, and whoever has no order left takes part no more.
        """
        self.charges += 1
        self._spent = self._spent + self._measure.cost(event)
        if self._allowed is not None:
            self._alive &= self._spent <= self._allowed

    def epsilons(self, delta: float) -> Floats:
        """ε_i(δ) of what everybody has spent."""
        return self._measure.epsilons(self._spent, delta)

    def state(self) -> dict[str, Any]:
        """All that moves. Secret."""
        return {
            "spent": self._spent.copy(),
            "alive": self._alive.copy(),
            "level": self._level.copy(),
            "charges": self.charges,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what `state` returned."""
        self._spent, self._alive, self._level = (np.array(state[name]) for name in ("spent", "alive", "level"))
        self.charges = int(state["charges"])
