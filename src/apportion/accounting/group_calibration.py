"""Find noise, rates and thresholds with which every group of people spends its own budget, and not more.

All steps share the noise z_t = c·r_t. A group's price is that of its own events: the rate q_p with z_t (`solve_rates`), or the common rate
with z_t/s_p (`solve_clips`). Both work for any shape r_1..r_T, and with any accountant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from apportion.accounting.accountant import Accountant, count_events
from apportion.accounting.calibration import TOLERANCE, calibrate
from apportion.budget import Group
from apportion.errors import InvalidArgument
from apportion.event import Event, GroupFactors, rate_of_any

COARSE = 24
"""Different multipliers with which rates are searched; the last prices are those of the schedule itself."""
_ROUNDS = 60
_ABOVE = 1 + TOLERANCE  # the average rate aims a little high, so that bringing it down to q exactly lowers every price


@dataclass(frozen=True)
class GroupProblem:
    """What is known before noise, rates and thresholds are solved.

    Args:
        groups: with their budgets and shares.
        shape: r_1..r_T, the multipliers in units of their scale, with those of spare steps.
        sample_rate: q, which the average rate is to be.
        delta: δ of every group.
        accountant: prices events.
        coins_per_unit: how many coins of a draw may belong to one unit.
    """

    groups: tuple[Group, ...]
    shape: Sequence[float]
    sample_rate: float
    delta: float
    accountant: Accountant
    coins_per_unit: int = 1

    def scale_for(self, epsilon: float) -> float:
        """The noise with which everybody spends `epsilon`, at the rate of all."""
        rate = rate_of_any(self.sample_rate, self.coins_per_unit)
        return calibrate(self.accountant, self.shape, sample_rate=rate, epsilon=epsilon, delta=self.delta)

    def price(self, rate: float, scale: float) -> float:
        """ε of the whole schedule for somebody who is drawn with `rate`."""
        unit_rate = rate_of_any(rate, self.coins_per_unit)
        return self.accountant.epsilon(count_events(Event(unit_rate, scale * r) for r in self.shape), self.delta)

    def coarse(self) -> GroupProblem:
        """The same with at most `COARSE` different multipliers, whose price is about the same."""
        values = np.asarray(self.shape, dtype=float)
        if len(np.unique(values)) <= COARSE:
            return self
        parts = np.array_split(np.sort(values), COARSE)
        rounded = [float(np.mean(part**-2.0) ** -0.5) for part in parts for _ in range(len(part))]
        return replace(self, shape=rounded)


@dataclass(frozen=True)
class GroupSolution:
    """The scale c of the noise, and the factors of each group."""

    scale: float
    factors: tuple[GroupFactors, ...]


def solve_clips(problem: GroupProblem, mean: str) -> GroupSolution:
    """c_p with which group p alone would spend ε_p; then c = (Σ_p r_p/c_p)⁻¹, or Σ_p r_p·c_p, and s_p = c/c_p."""
    needed = [problem.scale_for(group.epsilon) for group in problem.groups]
    shares = [group.share for group in problem.groups]
    pairs = list(zip(shares, needed, strict=True))
    scale = 1 / math.fsum(r / c for r, c in pairs) if mean == "harmonic" else math.fsum(r * c for r, c in pairs)
    return GroupSolution(scale, tuple(GroupFactors(share=r, clip=scale / c) for r, c in pairs))


def solve_rates(problem: GroupProblem) -> GroupSolution:
    """The c for which the rates q_p, each the largest that group p affords, have the average q = Σ_p r_p·q_p; ρ_p = q_p/q.

    With c as if all asked for the largest ε the average is below q, with c as if all asked for the smallest it is above.
    """
    groups, rate, coarse = problem.groups, problem.sample_rate, problem.coarse()
    least, most = (extreme(group.epsilon for group in groups) for extreme in (min, max))
    low, high = coarse.scale_for(most), coarse.scale_for(least)
    rates = [rate] * len(groups)

    def average(scale: float) -> float:
        rates[:] = [
            largest_rate(lambda q, c=scale: coarse.price(q, c), group.epsilon, guess)  # type: ignore[misc]
            for group, guess in zip(groups, rates, strict=True)
        ]
        return math.fsum(group.share * one for group, one in zip(groups, rates, strict=True)) / (rate * _ABOVE)

    scale = math.exp(
        _root(lambda logarithm: math.log(average(math.exp(logarithm))), math.log(low), math.log(high) + 0.05)
    )
    found = [
        largest_rate(lambda q: problem.price(q, scale), group.epsilon, guess)
        for group, guess in zip(groups, rates, strict=True)
    ]
    for group, one in zip(groups, found, strict=True):
        if one == 1 and (reached := problem.price(1.0, scale)) < 0.99 * group.epsilon:
            raise InvalidArgument(
                f"group {group.name!r}",
                group.epsilon,
                f"with the noise that the other groups need, even a member of every batch spends only {reached:.4g}",
                f"Ask for at most {reached:.4g} there, use people.Scale, or a smaller sampling rate",
            )
    total = math.fsum(group.share * one for group, one in zip(groups, found, strict=True))
    divisor = max(total, rate)
    return GroupSolution(
        scale,
        tuple(GroupFactors(share=group.share, rate=one / divisor) for group, one in zip(groups, found, strict=True)),
    )


def largest_rate(price: Callable[[float], float], epsilon: float, guess: float) -> float:
    """The rate q whose price is at most `epsilon` and at least 0.998 of it; 1 if that costs less. The price grows with q."""
    fits, exceeds = 0.0, 1.0
    points: list[tuple[float, float]] = []
    rate = min(guess, 0.9)
    for _ in range(_ROUNDS):
        spent = price(rate)
        if (1 - TOLERANCE) * epsilon <= spent <= epsilon:
            return rate
        if spent <= epsilon:
            fits = max(fits, rate)
            if rate == 1:
                return 1.0
        else:
            exceeds = min(exceeds, rate)
        if fits >= 1 - 1e-12:
            return fits
        points.append((math.log(rate), math.log(max(spent, 1e-300))))
        rate = _next_rate(points, epsilon, fits, exceeds)
    return fits


def _next_rate(points: Sequence[tuple[float, float]], epsilon: float, fits: float, exceeds: float) -> float:
    """Where the price should be met, by the last two points, if that lies in the bracket; otherwise its middle, or its end."""
    x1, y1 = points[-1]
    aim = math.log(epsilon * (1 - TOLERANCE / 2))
    x0, y0 = points[-2] if len(points) > 1 else (x1 - 1, y1 - 1)  # ε is about in proportion to q
    slope = (y1 - y0) / (x1 - x0) if x1 != x0 and y1 != y0 and math.isfinite(y1) and math.isfinite(y0) else 1.0
    guess = math.exp(min(0.0, x1 + (aim - y1) / slope)) if slope > 0 and math.isfinite(y1) else math.nan
    if exceeds == 1.0 and guess >= 1:
        return 1.0
    if fits < guess < exceeds:
        return guess
    return math.sqrt(max(fits, 1e-12) * exceeds) if exceeds < 1 or fits == 0 else 1.0


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a growing function is 0, to 0.1 %: by the rule of false position, which is kept from creeping."""
    below, above = function(low), function(high)
    if below >= 0:
        return low
    for _ in range(_ROUNDS):
        share = below / (below - above)
        middle = low + (high - low) * min(0.9, max(0.1, share))
        value = function(middle)
        if abs(value) < TOLERANCE / 4 or high - low < 1e-7:
            return middle
        low, below, high, above = (middle, value, high, above) if value < 0 else (low, below, middle, value)
    return high
