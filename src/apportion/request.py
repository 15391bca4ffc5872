"""One private question, its noisy answer and its price: the heart of the house.

A `Request` is frozen. The curator executes it; the `Event` that is charged is derived from the same object by
`Request.event()`. There is no second copy of a threshold or of a noise multiplier anywhere, so what is executed is what is
accounted. This file imports no torch, so that every room may import it.

**Price of a request.** Let release j have L2 sensitivity Δ_j (how far one record can move it) and noise of standard deviation
s_j on every coordinate. Divide each release by its s_j: one record then moves the concatenation by at most
√(Σ_j (Δ_j/s_j)²) = 1/z. So all of it together is one Gaussian mechanism with multiplier z, and on a fresh Poisson batch with
rate q it is dominated by the subsampled Gaussian (q, z). A request fixes z and gives every release a *share* w_j of it,
s_j = z·Δ_j/√w_j with Σ_j w_j = 1, which makes the sum above exactly 1/z² for any thresholds: thresholds may follow released
values, the multiplier may not.

**Selections.** A batch may also be asked which of several candidate weights has the lowest loss (`LowestLoss`), or for the first step size
that gains enough (`FirstGain`). Either answer is an index and ε₀-DP by itself. All that is asked of a batch is fixed before its coins
are tossed; its price is that of the parts together, without sampling, amplified once.

**Groups.** People may ask for different ε. A request then has factors for each group: its members are drawn with the rate q·ρ_p, clipped
to s_p·C, and weigh s_p in statistics. One of them moves the whitened answer by at most s_p/z, so for data sets that differ in a member of
group p the request is the event (q·ρ_p, z/s_p), whatever the thresholds are. The event of a request names that of every group, and the one
that covers all of them.

What can be asked is in `releases.py`, what is charged in `event.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

from apportion.errors import InvalidArgument
from apportion.event import MULTIPLIER, RATE, Event, GroupFactors, event_for, rate_of_any
from apportion.releases import (
    KINDS,
    SELECTIONS,
    ClippedSum,
    Noised,
    Release,
    Selection,
    Statistic,
    UsableCount,
    count_numbers,
)
from apportion.validate import (
    Checked,
    check,
    checked,
    positive,
    shown,
    whole,
)

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True)
class Request(Checked):
    """Everything that is asked of one Poisson batch.

    Args:
        sample_rate: q, the probability with which each record joins the batch, independently of all others.
        noise_multiplier: z, the multiplier of all noisy sums of this batch together (see the module's text); ∞ if there are none.
        expected_batch_size: q·population, the public constant by which the noisy sum is divided. Never the realised size,
            which is private.
        releases: clipped sums, whose parameter groups are disjoint, and statistics of the same batch, whose shares add up to 1; and
            selections.
        groups: the factors of each group of people; none if all are treated alike.
        coins_per_unit: k, how many coins of a draw may belong to one unit of privacy. It is in the batch with probability up to
            1 − (1 − q)^k, which is the rate of the event.

    Examples:
        >>> from apportion.releases import ClippedSum, UnclippedCount
        >>> from apportion.request import Request
        >>> releases = (ClippedSum(2.0, share=0.75, headroom=0.0), UnclippedCount(2.0, share=0.25))
        >>> request = Request(sample_rate=0.01, noise_multiplier=1.0, expected_batch_size=600.0, releases=releases)
        >>> [round(request.standard_deviation(release), 3) for release in releases]  # more than 2·1 and ½·1: they share one price
        [2.309, 1.0]
        >>> request.event()
        Event(sample_rate=0.01, noise_multiplier=1.0)
    """

    sample_rate: float = field(metadata=RATE)
    noise_multiplier: float = field(metadata=MULTIPLIER)
    expected_batch_size: float = field(
        metadata=check(positive, "the noisy sum is divided by it", "Use sample_rate * population")
    )
    releases: tuple[Release, ...]
    groups: tuple[GroupFactors, ...] = ()
    coins_per_unit: int = checked(1, whole, "it is a number of coins")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_usable_groups()
        if type(self.releases) is not tuple or not all(type(one) in KINDS for one in self.releases):
            raise InvalidArgument(
                "releases",
                shown(self.releases),
                "it is not a tuple of releases; a subclass of one would be priced by its own claim",
                "Pass (ClippedSum(1.0),)",
            )
        shares = [release.share for release in self.noised]
        if not self.noised and self.selections:
            if self.noise_multiplier != math.inf:
                reason = "a request of selections alone releases nothing with Gaussian noise"
                raise InvalidArgument("noise_multiplier", self.noise_multiplier, reason, "Pass math.inf")
            return
        if self.noise_multiplier == math.inf:
            raise InvalidArgument("noise_multiplier", math.inf, "sums would be released without noise", "Use a number")
        if not self.sums or not math.isclose(math.fsum(shares), 1.0, rel_tol=1e-9):
            raise InvalidArgument(
                "releases",
                shares,
                "the shares of one batch must add up to 1, or the stated multiplier would not be the executed one",
                "Divide each share by their sum",
            )
        named = [name for release in self.sums for name in release.parameters or ("*",)]
        if len(set(named)) != len(named) or ("*" in named and len(named) > 1):
            raise InvalidArgument(
                "releases",
                named,
                "a parameter stands in two groups, so its gradient would be released twice",
                "Use disjoint groups",
            )
        if len(set(self.statistics)) != len(self.statistics):
            raise InvalidArgument(
                "releases",
                shown(self.statistics),
                "a statistic is asked for twice, and there is one answer to it",
                "Ask once, with the share of both",
            )

    def _require_usable_groups(self) -> None:
        if type(self.groups) is not tuple or not all(type(one) is GroupFactors for one in self.groups):
            reason = "it is not a tuple of GroupFactors; a subclass would be priced by its own claim"
            raise InvalidArgument("groups", shown(self.groups), reason, "Pass (GroupFactors(share=1.0),)")
        if any(rate > 1 for rate in self.rates):
            raise InvalidArgument("groups", self.rates, "a sampling rate exceeds 1", "Use smaller factors")
        if self.groups and any(type(release) in SELECTIONS for release in self.releases):
            reason = "selections are priced for everybody alike, and groups have prices of their own"
            raise InvalidArgument("groups", self.groups, reason, "Ask for gradients and statistics only")

    @property
    def rates(self) -> tuple[float, ...]:
        """q_p = q·ρ_p of each group; q alone if there are none."""
        return tuple(self.sample_rate * one.rate for one in self.groups) or (self.sample_rate,)

    @property
    def clips(self) -> tuple[float, ...]:
        """s_p of each group; 1 alone if there are none."""
        return tuple(one.clip for one in self.groups) or (1.0,)

    @property
    def expected_weight(self) -> float:
        """N·Σ_p r_p·q_p·s_p: what the units of a batch weigh in statistics together, as declared; q·N without groups.

        q and q_p are rates of units: of at least one of the coins that belong to a unit.
        """
        if not self.groups:
            return self.expected_batch_size
        rates = [rate_of_any(rate, self.coins_per_unit) for rate in self.rates]
        weight = math.fsum(one.share * rate * one.clip for one, rate in zip(self.groups, rates, strict=True))
        return self.expected_batch_size * weight / rate_of_any(self.sample_rate, self.coins_per_unit)

    @cached_property
    def sums(self) -> tuple[ClippedSum, ...]:
        """The releases that make the gradient."""
        return tuple(release for release in self.releases if isinstance(release, ClippedSum))

    @cached_property
    def statistics(self) -> tuple[Statistic, ...]:
        """The releases that are one number each, or the few of a histogram."""
        return tuple(release for release in self.releases if isinstance(release, Statistic))

    @property
    def statistic_numbers(self) -> int:
        """How many numbers the statistics are together."""
        return sum(map(count_numbers, self.statistics))

    @cached_property
    def noised(self) -> tuple[Noised, ...]:
        """The releases with Gaussian noise."""
        return tuple(release for release in self.releases if isinstance(release, Noised))

    @cached_property
    def selections(self) -> tuple[Selection, ...]:
        """The releases that are an index each."""
        return tuple(release for release in self.releases if isinstance(release, Selection))

    @property
    def holds_tensors(self) -> bool:
        """Whether some of what is asked stands in tensors: the frame of a sum, or the line of a selection."""
        return bool(self.selections) or any(release.frame is not None for release in self.sums)

    def event(self) -> Event:
        """The price of this request. The only source of what is charged."""
        choices = tuple(release.choice() for release in self.selections)
        return event_for(self.sample_rate, self.noise_multiplier, self.groups, choices, self.coins_per_unit)

    def standard_deviation(self, release: Noised) -> float:
        """s = z·Δ/√w: the noise on every coordinate of the *sum* that `release` asks for."""
        return self.noise_multiplier * release.sensitivity / math.sqrt(release.share)


@final
@dataclass(frozen=True)
class Released:
    """The noisy answer to a request. Safe to look at, to log and to publish.

    Args:
        request: what was asked (public).
        gradient: for each trained parameter, (clipped sum + noise) / expected batch size, in its own coordinates.
        statistics: for each of `request.statistics`, (sum + noise) / expected weight of a batch, which is its size without groups. A
            histogram has a number for each of its points, so that `answer_to` finds those of a statistic.
        selected: for each of `request.selections`, the index of the chosen step size; `None` if a `FirstGain` found none.
    """

    request: Request
    gradient: Mapping[str, Tensor]
    statistics: tuple[float, ...] = ()
    selected: tuple[int | None, ...] = ()

    def answer_to(self, statistic: Statistic) -> tuple[float, ...]:
        """The numbers that answer one of `request.statistics`."""
        place = self.request.statistics.index(statistic)
        first = sum(map(count_numbers, self.request.statistics[:place]))
        return self.statistics[first : first + count_numbers(statistic)]

    def split_usable(self) -> tuple[Released, float | None]:
        """This answer without the one to a `UsableCount`, which is not for strategies, and that one; `None` if it was not asked for.

        It is asked last, and answered as Σ_i (u_i − ½) + noise, divided by the expected weight of a batch.
        """
        if not self.request.statistics or type(self.request.statistics[-1]) is not UsableCount:
            return self, None
        *others, answer = self.statistics
        return Released(self.request, self.gradient, tuple(others), self.selected), answer

    def __repr__(self) -> str:  # a gradient of a million numbers is no help in a traceback
        names: Any = list(self.gradient)
        return f"Released(request={self.request!r}, gradient of {names})"
