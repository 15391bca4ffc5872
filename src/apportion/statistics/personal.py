"""How people with budgets of their own take part: a method turns public budgets into parts, each of which is one noisy release.

A **part** asks a pure ε-DP mechanism about a sample in which a record of level p is with probability π_p. A person of that level pays
ln(1 + π_p·(e^ε − 1)) for it: with π_p = 1 that is ε, with π_p = (e^{ε_p} − 1)/(e^ε − 1) it is ε_p, and with π_p = 0 nothing. The parts of a
method add up for each level to at most its ε_p; `pay` checks that before anything is charged, also of a method of one's own.

| method        | parts                                                               | source                 |
|---------------|---------------------------------------------------------------------|------------------------|
| `Sample`      | one, on a sample                                                    | Jorgensen et al. 2015  |
| `Partition`   | one for each bin of levels, with the smallest ε in the bin          | Li H. et al. 2017      |
| `Adaptive`    | one for each round, on samples by what is left of the budgets       | Niu et al. 2021        |
| `Exponential` | none: scores that each person moves by at most their own ε          | Jorgensen et al. 2015  |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from apportion.errors import BudgetExhausted
from apportion.statistics.discrete_noise import discrete_laplace_variance
from apportion.statistics.roster import Roster
from apportion.validate import Checked, check, checked, known, one_of, positive, whole

_DOWN = 1 - 2.0**-40
"""Rates and thresholds that come from a subtraction are rounded down by so much, which covers every rounding error in them."""

_LARGE = 500.0
"""e^ε is close to the end of float64."""


@dataclass(frozen=True)
class Part:
    """One release, ε-DP for whoever is in its sample.

    Args:
        rates: π_p, by level.
        epsilon: ε of the mechanism.
    """

    rates: tuple[float, ...]
    epsilon: float

    def loss(self, level: int) -> float:
        """What a person of this level pays: ln(1 + π·(e^ε − 1))."""
        rate = self.rates[level]
        if rate in (0.0, 1.0):
            return rate * self.epsilon
        if self.epsilon < _LARGE:
            return math.log1p(rate * math.expm1(self.epsilon))
        return self.epsilon + math.log(rate + (1 - rate) * math.exp(-self.epsilon))

    def mean_rate(self, roster: Roster) -> float:
        """Σ_p r_p·π_p: the part of all people that is expected in the sample."""
        return math.fsum(share * rate for share, rate in zip(roster.shares, self.rates, strict=True))

    def noise_variance(self, roster: Roster, sensitivity: int = 1) -> float:
        """Of a sum estimated for all people: that of the discrete Laplace noise, divided by (Σ_p r_p·π_p)²."""
        return discrete_laplace_variance(sensitivity / self.epsilon) / self.mean_rate(roster) ** 2


class Method(Checked):
    """How a count, a mean or a histogram is asked of people with budgets of their own: a subclass says which parts there are."""

    prefix = "method"
    population = 0.0
    """N: declared by a method that weighs the error of sampling against noise; otherwise noise alone counts."""

    def parts(self, roster: Roster) -> tuple[Part, ...]:
        """What is to be released, from public budgets alone."""
        raise NotImplementedError


class Plain(Method):
    """One release with one ε for everybody."""

    def parts(self, roster: Roster) -> tuple[Part, ...]:
        return (Part((1.0,), roster.largest),)


def pay(parts: Sequence[Part], roster: Roster) -> dict[str, float]:
    """What each level pays; raises if that is more than its ε."""
    paid = {name: math.fsum(part.loss(p) for part in parts) for p, name in enumerate(roster.names)}
    for (name, loss), allowed in zip(paid.items(), roster.epsilons, strict=True):
        if not loss <= allowed * (1 + 1e-12):
            raise BudgetExhausted(f"the method asks {name!r} for ε = {loss:.6g}, and {allowed:g} is allowed")
    return paid


def sampling_rates(epsilons: Sequence[float], threshold: float) -> tuple[float, ...]:
    """π_p = 1 if ε_p ≥ t, otherwise (e^{ε_p} − 1)/(e^t − 1), rounded down; 0 for ε_p = 0."""
    return tuple(1.0 if one >= threshold else _DOWN * _ratio(one, threshold) for one in epsilons)


def _ratio(epsilon: float, threshold: float) -> float:
    """(e^ε − 1)/(e^t − 1), without numbers as large as e^t."""
    return math.exp(epsilon - threshold) * math.expm1(-epsilon) / math.expm1(-threshold)


def _read_threshold(argument: str, value: Any, why: str, fix: str) -> float | str:
    return known(argument, value, ("max", "mean")) if isinstance(value, str) else positive(argument, value, why, fix)


@dataclass(frozen=True)
class Sample(Method):
    """A sample in which people who allow less are less often, and a mechanism with ε = t on it.

    π_i = 1 if ε_i ≥ t, otherwise (e^{ε_i} − 1)/(e^t − 1). Guarantee: min(ε_i, t)-DP for person i, because ln(1 + π_i·(e^t − 1)) = ε_i. A
    count is divided by the expected part Σ_p r_p·π_p. (Jorgensen, Yu and Cormode 2015, section 4.1.)

    Args:
        threshold: t: "max" or "mean" of the public budgets, or a number.

    Examples:
        >>> import apportion as ap
        >>> people = {"strict": (0.5, 0.5), "loose": (1.0, 0.5)}
        >>> budget = ap.Budget.of_groups(people, delta=1e-6, unit=ap.Record())
        >>> method = ap.statistics.Sample(threshold="max")
        >>> found = ap.statistics.count([3.0, 4.0], budget=budget, labels=["strict", "loose"], method=method, seed=0)
        >>> {name: round(epsilon, 6) for name, epsilon in found.paid.items()}
        {'strict': 0.5, 'loose': 1.0}
    """

    threshold: float | Literal["max", "mean"] = checked("max", _read_threshold, "it is the ε of a mechanism")

    def parts(self, roster: Roster) -> tuple[Part, ...]:
        if self.threshold == "max":
            threshold = roster.largest
        elif self.threshold == "mean":
            threshold = math.fsum(r * one for r, one in zip(roster.shares, roster.epsilons, strict=True))
        else:
            threshold = float(self.threshold)
        return (Part(sampling_rates(roster.epsilons, threshold), threshold),)


@dataclass(frozen=True)
class Exponential(Checked):
    """P[r] ∝ exp(½·d(D, r)), d(D, r) = max over data sets D′ with answer r of −Σ_{i in one of D, D′ only} ε_i: for a count and a median.

    The score counts the people whose values would have to be there or missing for r to be true, each with their own ε, the cheapest ones
    first. Taking person i away moves it by at most ε_i, so it is ε_i-DP for person i. People of the roster without a value may be added, so
    the list of people must be public here. With equal budgets it is the ordinary exponential mechanism.
    (Jorgensen, Yu and Cormode 2015, section 4.2.)

    Examples:
        >>> import apportion as ap
        >>> budget = ap.Budget(epsilon=9.0, delta=1e-6, unit=ap.Record())
        >>> method = ap.statistics.Exponential()
        >>> ap.statistics.count([1.0] * 50, budget=budget, epsilons=[9.0] * 50, method=method, seed=0).value
        50
    """


@dataclass(frozen=True)
class Partition(Method):
    """People with similar budgets in one bin, and one release for each bin, with the smallest ε in it.

    Bins are runs of levels in ascending order, chosen by an exact dynamic programme over the public budgets:

    - "privacy": the least wasted budget, Σ_bins Σ_{p in bin} r_p·(ε_p − ε_bin), with at most `bins` bins;
    - "utility": the least variance of the combined answer, 1/Σ_bins (1/v_bin), where v_bin is that of the noise divided by r_bin².

    Each bin estimates the answer for all, by its share, and the estimates are combined by inverse variance. Guarantee: bins are disjoint,
    so person i pays the ε of their bin, which is at most ε_i. (Li H., Xiong, Ji and Jiang 2017.)

    Args:
        by: "privacy" or "utility".
        bins: how many there may be; by default as many as there are different budgets.

    Examples:
        >>> import apportion as ap
        >>> people = {"strict": (1.0, 0.34), "medium": (2.0, 0.43), "loose": (3.0, 0.23)}
        >>> budget = ap.Budget.of_groups(people, delta=1e-6, unit=ap.Record())
        >>> labels = ["strict", "medium", "loose"]
        >>> ap.statistics.count([1, 2, 3], budget=budget, labels=labels, method=ap.statistics.Partition(), seed=0).paid
        {'strict': 1.0, 'medium': 2.0, 'loose': 2.0}
    """

    by: Literal["privacy", "utility"] = checked(
        "utility", one_of("privacy", "utility"), "it is what bins are chosen by"
    )
    bins: int | None = checked(None, whole, "it is a number of bins")

    def parts(self, roster: Roster) -> tuple[Part, ...]:
        cost = _wasted if self.by == "privacy" else _minus_precision
        levels = len(roster.epsilons)
        edges = best_edges(levels, self.bins or levels, lambda start, stop: cost(roster, start, stop))
        return tuple(_bin(roster, start, stop) for start, stop in pairwise(edges))


def _bin(roster: Roster, start: int, stop: int) -> Part:
    rates = tuple(float(start <= level < stop) for level in range(len(roster.epsilons)))
    return Part(rates, min(roster.epsilons[start:stop]))


def _wasted(roster: Roster, start: int, stop: int) -> float:
    """Σ_{p in bin} r_p·(ε_p − ε_bin)."""
    least = _bin(roster, start, stop).epsilon
    return math.fsum(roster.shares[p] * (roster.epsilons[p] - least) for p in range(start, stop))


def _minus_precision(roster: Roster, start: int, stop: int) -> float:
    return -1 / _bin(roster, start, stop).noise_variance(roster)


def best_edges(levels: int, most: int, cost: Callable[[int, int], float]) -> list[int]:
    """Cut 0 … levels into at most `most` runs with the smallest sum of costs; of equally good cuts one with the fewest runs.

    best[k][j] = min_i best[k−1][i] + cost(i, j) is the least for the first j levels in exactly k runs.
    """
    table = {(i, j): cost(i, j) for i in range(levels) for j in range(i + 1, levels + 1)}
    best: list[dict[int, tuple[float, list[int]]]] = [{0: (0.0, [0])}]
    for _ in range(min(most, levels)):
        best.append({})
        for stop in range(1, levels + 1):
            ways = [(total + table[i, stop], [*edges, stop]) for i, (total, edges) in best[-2].items() if i < stop]
            if ways:
                best[-1][stop] = min(ways)
    return min((row[levels] for row in best[1:] if levels in row), key=lambda way: (way[0], len(way[1])))[1]


@dataclass(frozen=True, kw_only=True)
class Adaptive(Method):
    """Rounds on samples by what is left of each budget: whoever allows more is asked again, after the strict have paid all they allow.

    Round k has a threshold t_k, the one among the residual budgets with the least predicted variance: v/π̄² + N·(1 − π̄)/π̄, with the
    variance v of the noise and π̄ = Σ_p r_p·π_p. People pay min(residual, t_k) each, *in the sample or not*, until nothing is left.
    Rounds are combined with the weights of least predicted variance. Guarantee: ε_i for person i, the sum of what they paid. All choices
    follow public budgets. (After Niu et al. 2021.)

    Args:
        population: N, the declared number of people.
        rounds: how many there may be; by default until all budgets are spent, which takes at most one for each different budget.

    Examples:
        >>> import apportion as ap
        >>> people = {"strict": (1.0, 0.5), "loose": (3.0, 0.5)}
        >>> budget = ap.Budget.of_groups(people, delta=1e-6, unit=ap.Record())
        >>> method = ap.statistics.Adaptive(population=1000)
        >>> found = ap.statistics.count([1, 2], budget=budget, labels=["strict", "loose"], method=method, seed=0)
        >>> {name: round(epsilon, 6) for name, epsilon in found.paid.items()}
        {'strict': 1.0, 'loose': 3.0}
    """

    population: float = field(
        metadata=check(positive, "it is the declared number of people", "Declare it; it is never counted")
    )
    rounds: int | None = checked(None, whole, "it is a number of rounds")

    def parts(self, roster: Roster) -> tuple[Part, ...]:
        residual, parts = list(roster.epsilons), list[Part]()
        while any(residual) and len(parts) < (self.rounds or len(residual)):
            candidates = [Part(sampling_rates(residual, t), t) for t in sorted({one for one in residual if one})]
            part = min(candidates, key=lambda one: self._predict(one, roster))
            parts.append(part)
            residual = [_left(one, part, level) for level, one in enumerate(residual)]
        return tuple(parts)

    def _predict(self, part: Part, roster: Roster) -> float:
        """The variance of a count of everybody that is estimated from this part: of a sample of N·π̄ people, and of the noise."""
        rate = part.mean_rate(roster)
        return part.noise_variance(roster) + self.population * (1 - rate) / rate


def _left(residual: float, part: Part, level: int) -> float:
    """What a level has left: nothing if it was sampled, or asked for all of it; otherwise the difference, rounded down."""
    return _DOWN * (residual - part.loss(level)) if residual > part.epsilon else 0.0
