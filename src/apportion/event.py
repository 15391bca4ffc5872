"""What is charged: the price of one draw, as the books keep it.

An `Event` is the subsampled Gaussian (q, z) that dominates all sums of a draw, with the `Choice`s that were made on the same batch and the
pair of each group of people. It is derived from a `Request` (`request.py`) and from nothing else. Imports no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, final

from apportion.errors import InvalidArgument
from apportion.validate import (
    Checked,
    check,
    checked,
    instance_of,
    positive,
    probability,
    shown,
    store,
)

RATE = check(probability, "it is a probability", "Use batch_size / population")
CHOICE_BUDGET = (positive, "without noise no finite epsilon holds", "Try epsilon=0.5")


def _read_multiplier(argument: str, value: Any, why: str, fix: str) -> float:
    """∞ stands for no Gaussian at all."""
    return math.inf if isinstance(value, float) and value == math.inf else positive(argument, value, why, fix)


MULTIPLIER = check(
    _read_multiplier,
    "without noise no finite epsilon holds",
    "Leave the multiplier out to have it solved from the budget",
)


@final
@dataclass(frozen=True, slots=True, order=True)
class Choice(Checked):
    """The price of a selection on a batch, without sampling: ε₀-DP, whatever the number of candidates.

    Args:
        epsilon: ε₀.
        bounded_range: whether the ratio of the probabilities of any two outcomes changes by at most e^ε₀ too, as with Gumbel noise. Then
            ρ = ε₀²/8 instead of ε₀·tanh(ε₀/2). (Dong, Durfee and Rogers 2020.)
    """

    epsilon: float = field(metadata=check(*CHOICE_BUDGET))
    bounded_range: bool = checked(False, instance_of(bool), "it is a property of the noise", "Use True or False")

    @property
    def rho(self) -> float:
        """Of zero-concentrated DP: D_α ≤ ρ·α for all α > 1."""
        return self.epsilon**2 / 8 if self.bounded_range else self.epsilon * math.tanh(self.epsilon / 2)

    def covers(self, other: Choice) -> bool:
        """Whether `other` is dominated by this choice."""
        return other.epsilon <= self.epsilon and (other.bounded_range or not self.bounded_range)


@final
@dataclass(frozen=True, slots=True)
class GroupFactors(Checked):
    """How a request treats the members of a group, in proportion to what it says for all. Public and constant during a run.

    Args:
        rate: ρ_p. They join a batch with probability q·ρ_p.
        clip: s_p. Their gradients are clipped to s_p·C, and they weigh s_p in statistics.
        share: r_p, the declared part of the population that is in the group.
    """

    share: float = field(metadata=check(probability, "it is a part of the population", "Use the declared share"))
    rate: float = checked(1.0, positive, "it multiplies the sampling rate", "Use 1.0 for the rate of all")
    clip: float = checked(1.0, positive, "it multiplies thresholds", "Use 1.0 for the threshold of all")


@final
@dataclass(frozen=True, slots=True)
class Event(Checked):
    """What the accountant sees of a request: on a Poisson batch with rate q, a Gaussian with noise multiplier z, and choices.

    Args:
        sample_rate: q; with groups the largest of theirs.
        noise_multiplier: z; ∞ for an event of choices alone. With groups the smallest of theirs: the event covers everybody.
        choices: the selections on the same batch.
        groups: (q_p, z_p) of each group, in the order of the budget.
    """

    sample_rate: float = field(metadata=RATE)
    noise_multiplier: float = field(metadata=MULTIPLIER)
    choices: tuple[Choice, ...] = ()
    groups: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        if self._is_plain():  # a plan has thousands
            return
        Checked.__post_init__(self)  # `super()` does not find a class with slots
        if type(self.choices) is not tuple or not all(type(one) is Choice for one in self.choices):
            raise InvalidArgument("choices", shown(self.choices), "it is not a tuple of choices", "Pass (Choice(0.5),)")
        store(self, choices=tuple(sorted(self.choices, reverse=True)))
        if self.noise_multiplier == math.inf and not self.choices:
            raise InvalidArgument(
                "noise_multiplier", math.inf, "an event that releases nothing is none", "Use a finite one"
            )
        if self.groups:
            store(self, groups=_read_pairs(self.groups))
            rates, multipliers = zip(*self.groups, strict=True)
            if self.choices or self.sample_rate < max(rates) or self.noise_multiplier > min(multipliers):
                raise InvalidArgument(
                    "groups",
                    self.groups,
                    "the event must cover each of them, and holds no choices",
                    "Use Request.event()",
                )

    def _is_plain(self) -> bool:
        """Whether it is one Gaussian whose numbers need neither reading nor a word."""
        return (
            type(self.sample_rate) is float
            and type(self.noise_multiplier) is float
            and 0 < self.sample_rate <= 1
            and 0 < self.noise_multiplier < math.inf
            and self.choices == ()
            and self.groups == ()
        )

    def __repr__(self) -> str:
        choices = f", choices={self.choices!r}" if self.choices else ""
        groups = f", groups={self.groups!r}" if self.groups else ""
        return f"Event(sample_rate={self.sample_rate!r}, noise_multiplier={self.noise_multiplier!r}{choices}{groups})"

    def of_group(self, number: int) -> Event:
        """What it is for a member of a group, counted from 0; the same for everybody if it has no groups."""
        return Event(*self.groups[number]) if self.groups else self

    def covers(self, other: Event) -> bool:
        """Whether `other` is dominated by this event, in every group: its rate is no larger, its multiplier no smaller, and each choice
        no dearer."""
        return (
            len(self.groups) == len(other.groups)
            and all(two[0] <= one[0] and two[1] >= one[1] for one, two in zip(self.groups, other.groups, strict=True))
            and other.sample_rate <= self.sample_rate
            and other.noise_multiplier >= self.noise_multiplier
            and len(other.choices) <= len(self.choices)
            and all(one.covers(two) for one, two in zip(self.choices, other.choices, strict=False))
        )


def _read_pairs(groups: Any) -> tuple[tuple[float, float], ...]:
    fix = "Use Request.event()"
    if not isinstance(groups, (tuple, list)) or not all(
        isinstance(one, (tuple, list)) and len(one) == 2 for one in groups
    ):
        raise InvalidArgument("groups", shown(groups), "it does not hold pairs (q, z)", fix)
    return tuple(
        (probability("groups", rate, "it is a sampling rate", fix), positive("groups", multiplier, "it is noise", fix))
        for rate, multiplier in groups
    )


def event_for(
    sample_rate: float,
    noise_multiplier: float,
    groups: tuple[GroupFactors, ...] = (),
    choices: tuple[Choice, ...] = (),
    coins_per_unit: int = 1,
) -> Event:
    """The event of a request with rate q and multiplier z: for group p (q·ρ_p, z/s_p); with several coins the rate of at least one."""
    if not groups:
        return Event(rate_of_any(sample_rate, coins_per_unit), noise_multiplier, choices)
    pairs = tuple((rate_of_any(sample_rate * one.rate, coins_per_unit), noise_multiplier / one.clip) for one in groups)
    rates, multipliers = zip(*pairs, strict=True)
    return Event(max(rates), min(multipliers), choices, pairs)


def rate_of_any(rate: float, coins: int) -> float:
    """1 − (1 − q)^k, the probability that at least one of k coins falls true; rounded up."""
    if coins == 1 or rate == 1:
        return rate
    return min(1.0, -math.expm1(coins * math.log1p(-rate)) * (1 + 1e-12))
