"""Rules over runs: when may a further run start on a data set whose limit (ε, δ) was declared once?

Run 2 is planned after the results of run 1 were seen, so its price may depend on them. Composing the events that happened to be
executed, by PLD, is then **not** a guarantee: a person could plan small runs until a lucky result and large ones after it. A rule that
stays valid is a *filter*: each run has a cost that is fixed before its first step, costs add up, and a run that does not fit is
refused. What is promised is the limit itself, whatever was spent of it.

**Gaussian rule** (default). Let F(μ, d) be the pair "with probability 1−d N(μ, 1) against N(0, 1), otherwise two results that cannot be
confused". Its δ(e) is (1−d)·δ_μ(e) + d, it is symmetric, and F(μ₁, d₁) × F(μ₂, d₂) = F(√(μ₁²+μ₂²), 1 − (1−d₁)(1−d₂)): the family is closed.
A run with its whole plan is dominated by F(μ, d) if δ_run(e) ≤ (1−d)·δ_μ(e) + d for all e ≥ 0 and both orientations. Declare D and M
with (1−D)·δ_M(ε) + D = δ and admit a run iff Σμ² ≤ M² and Π(1−d) ≥ 1−D.

*Proof.* By induction over the runs that are still to come: whatever the first run showed, the rest is dominated by
F(√(M²−μ²), 1−(1−D)/(1−d)). By H_a(P₁P₂(y)‖Q₁Q₂(y)) = E_{y∼P₁} H_{a·q₁/p₁}(P₂(y)‖Q₂(y)) the rest may be replaced by that pair for every
y, then the run by F(μ, d), and the product is F(M, D) for every choice of (μ, d). F(M, D) is (ε, δ)-DP by the choice of M and D.
Runs may be interleaved: a filter for f-DP stays valid for interactive mechanisms side by side (Haney et al. 2023). ∎

**Sum rule.** Σε_i ≤ ε and Σδ_i ≤ δ. *Proof.* Cut p₁ at e^{ε₁}·q₁: what lies above has mass at most δ₁, and below it the rest, which is
(ε−ε₁, δ−δ₁)-DP, costs at most δ−δ₁. ∎
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from apportion.accounting.accountant import (
    SMALLEST_DELTA,
    PrivacyLossAccountant,
    merge_unsampled,
    total_variation,
    unsampled_mu,
)
from apportion.accounting.gaussian import gaussian_epsilon, gaussian_mu
from apportion.accounting.selection import NumberOfTrials, Selection
from apportion.budget import Budget, require_budget
from apportion.errors import InvalidArgument
from apportion.event import Event

FAILURE_SHARE = 0.03
"""D/δ: how much of δ the Gaussian rule keeps for the tails of runs that a Gaussian would bound badly."""
FAILURE_PART = 1 / 20
"""Which part of what is left of D a run may use. So the first run has d = D/20, and D is never used up."""
_POINTS = 2048
_CURVES = 5
_TRIALS_RATIO = 1.05
_MOST_TERMS = 2_000_000
_SUM_ROUNDING = 1e-12  # of probabilities that add up to 1
_ROUNDING = 1e-12  # relative: ten runs at δ = 1e-6 fit into 1e-5, although their binary sum is a last bit larger


Planned = Mapping[Event, int] | Selection | Budget
"""What is known of a run before its first step: its events; the trials of a search; or, under a filter, the promise alone."""


@dataclass(frozen=True)
class Cost:
    """Two amounts that add up over runs and are limited separately.

    Args:
        main: μ² in the Gaussian rule, ε in the sum rule.
        failure: −ln(1−d) in the Gaussian rule, δ in the sum rule.
    """

    main: float = 0.0
    failure: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.main + other.main, self.failure + other.failure)

    def minus(self, other: Cost) -> Cost:
        """What is left of this, at least 0."""
        return Cost(max(0.0, self.main - other.main), max(0.0, self.failure - other.failure))

    def fits(self, capacity: Cost) -> bool:
        room = 1 + _ROUNDING
        return self.main <= capacity.main * room and self.failure <= capacity.failure * room


class RunRule(Protocol):
    """Turns a limit into a capacity and a planned run into a cost against it."""

    name: ClassVar[str]
    adds: ClassVar[str]
    """What of the runs adds up, in words."""

    @property
    def limit(self) -> Budget:
        """The guarantee over all runs."""
        ...

    def capacity(self) -> Cost:
        """All that may be spent."""
        ...

    def cost(self, plan: Planned, delta: float, left: Cost) -> Cost:
        """Of a run with `plan`, of a whole search, or of a run that promises a budget, whose own δ is `delta`, while `left` is left of the
        capacity."""
        ...

    def epsilon(self, spent: Cost) -> float:
        """`spent` as an ε at the limit's δ: for people, the guarantee is the limit."""
        ...

    def describe(self, cost: Cost) -> str:
        """An amount, as the rule counts it."""
        ...

    def room(self, left: Cost) -> str:
        """Which further runs fit into what is left, in words."""
        ...


@dataclass(frozen=True)
class GaussianRuns:
    """Admit runs while Σμ² ≤ M² and Π(1−d) ≥ 1−D; see the module's text for the proof."""

    limit: Budget
    name: ClassVar[str] = "gaussian"
    adds: ClassVar[str] = "μ² and d of the runs add up, but not their ε"

    def __post_init__(self) -> None:
        require_budget("limit", self.limit)

    def capacity(self) -> Cost:
        """(M², −ln(1−D)) with D = 0.03·δ and (1−D)·δ_M(ε) + D = δ, M rounded down."""
        failure = FAILURE_SHARE * self.limit.delta
        largest = gaussian_mu(self.limit.epsilon, (self.limit.delta - failure) / (1 - failure))
        return Cost(largest**2, -math.log1p(-failure))

    def cost(self, plan: Planned, delta: float, left: Cost) -> Cost:
        """(μ², −ln(1−d)). The run's own δ plays no part: its whole curve does."""
        if isinstance(plan, Budget):
            reason = (
                "the gaussian rule adds up whole curves δ(ε), and a run under a filter promises one point of its curve"
            )
            raise InvalidArgument(
                "ledger", self.name, reason, "Use a ledger with the rule sum, or a ledger of its own for this run"
            )
        failure = -math.expm1(-left.failure * FAILURE_PART)
        return search_cost(plan, failure) if isinstance(plan, Selection) else gaussian_cost(plan, failure)

    def epsilon(self, spent: Cost) -> float:
        failure = -math.expm1(-spent.failure)
        if failure >= self.limit.delta:
            return math.inf
        return gaussian_epsilon(math.sqrt(spent.main), (self.limit.delta - failure) / (1 - failure))

    def describe(self, cost: Cost) -> str:
        return f"μ² = {cost.main:.4g} (by itself ε = {self.epsilon(cost):.4g}), d = {-math.expm1(-cost.failure):.3g}"

    def room(self, left: Cost) -> str:
        return (
            f"about one more run of ε = {self.epsilon(left):.4g} at δ = {self.limit.delta:g}, or several smaller ones"
        )


@dataclass(frozen=True)
class SumOfRuns:
    """Admit runs while Σε_i ≤ ε and Σδ_i ≤ δ: any runs, at a higher price."""

    limit: Budget
    name: ClassVar[str] = "sum"
    adds: ClassVar[str] = "ε and δ of the runs add up"

    def __post_init__(self) -> None:
        require_budget("limit", self.limit)

    def capacity(self) -> Cost:
        return Cost(self.limit.epsilon, self.limit.delta)

    def cost(self, plan: Planned, delta: float, left: Cost) -> Cost:
        """(ε_i, δ_i) of the whole plan at the run's own δ, which must be a part of the limit's."""
        if isinstance(plan, Budget):
            return Cost(plan.epsilon, plan.delta)
        if isinstance(plan, Selection):
            return Cost(plan.epsilon(delta), delta)
        return Cost(PrivacyLossAccountant().epsilon(plan, delta), delta)

    def epsilon(self, spent: Cost) -> float:
        return spent.main

    def describe(self, cost: Cost) -> str:
        return f"ε = {cost.main:.4g}, δ = {cost.failure:.3g}"

    def room(self, left: Cost) -> str:
        return f"runs whose ε add up to {left.main:.4g} and whose δ add up to {left.failure:.3g}"


RULES: dict[str, type[GaussianRuns] | type[SumOfRuns]] = {rule.name: rule for rule in (GaussianRuns, SumOfRuns)}


def gaussian_cost(plan: Mapping[Event, int], failure: float) -> Cost:
    """The smallest μ with δ_run(e) ≤ (1−d)·δ_μ(e) + d for all e ≥ 0, for d = `failure`, as (μ², −ln(1−d)).

    Between two points e_k < e_{k+1} both sides fall, so it is enough to compare δ_run(e_k) with the bound at e_{k+1}. From the
    last point on δ_run ≤ d. Both orientations are covered by the larger of the two, because F is symmetric. A run on all records
    (q = 1) is a Gaussian, exactly, and needs no d.
    """
    counts = merge_unsampled(plan)
    if not counts:
        return Cost()
    if mu := unsampled_mu(counts):
        return Cost(mu**2)
    if total_variation(counts) <= failure:
        return Cost(0.0, -math.log1p(-failure))
    _require_resolvable(failure)
    # A curve is sharp near the δ that it was made for and a loose upper bound elsewhere, so the smallest of several is taken.
    curves = [PrivacyLossAccountant().curve(counts, float(delta)) for delta in np.geomspace(failure, 0.2, _CURVES)]
    points = np.linspace(0.0, curves[0].epsilon(failure), _POINTS + 1)
    deltas = np.array([min(curve.delta(float(point)) for curve in curves) for point in points[:-1]])
    return _dominating_cost(points[1:], deltas, failure)


def search_cost(search: Selection, failure: float) -> Cost:
    """The same for a search of which only the best trial is published, from the smaller of two bounds of its δ(e).

    - that of the selection, `Selection.deltas`, which is sharp for large e;
    - K does not depend on the data, and the winner is a function of all K trials: δ(e) ≤ Σ_k P(K = k)·δ of k trials that are all
      published. A trial is dominated by F(μ₁, d), so k of them are by F(√k·μ₁, 1−(1−d)^k). This one is sharp for small e.

    It is still about twice the search's own ε, because the best of many is far from Gaussian. The sum rule charges just that ε.
    """
    _require_resolvable(failure)
    largest = search.epsilon(failure)
    if not largest < math.inf:
        return Cost(math.inf, -math.log1p(-failure))
    points = np.linspace(0.0, largest, _POINTS + 1)
    mu = math.sqrt(max(gaussian_cost(events, failure).main for events in search.candidates))
    published, tail = np.zeros(_POINTS), 1.0
    for number, probability in _rounded_up(search.trials, failure):
        clear = -math.expm1(number * math.log1p(-failure))
        published += probability * ((1 - clear) * _gaussian_deltas(points[:-1], math.sqrt(number) * mu) + clear)
        tail -= probability
    deltas = np.minimum(search.deltas(points[:-1]), published + max(tail, 0.0) + _SUM_ROUNDING)
    return _dominating_cost(points[1:], deltas, failure)


def _rounded_up(trials: NumberOfTrials, rest: float) -> Iterator[tuple[int, float]]:
    """(k, P(K rounded up to k)) for all but `rest` of the probability, with few different k: more trials cost more."""
    total = mass = 0.0
    edge = 1
    for number, probability in enumerate(trials.probabilities(), start=1):
        total, mass = total + probability, mass + probability
        if number == edge or total >= 1 - rest:
            yield edge, mass
            mass, edge = 0.0, max(number + 1, int(number * _TRIALS_RATIO))
        if total >= 1 - rest or number > _MOST_TERMS:
            return


def _require_resolvable(failure: float) -> None:
    if failure < SMALLEST_DELTA:
        reason = "so little of delta is left for the tails of a run that it cannot be priced"
        raise InvalidArgument("ledger", failure, reason, "Declare a limit with a larger delta in a new ledger")


def _dominating_cost(next_points: NDArray[np.float64], deltas: NDArray[np.float64], failure: float) -> Cost:
    """The smallest μ with deltas ≤ (1−d)·δ_μ(next points) + d, as (μ², −ln(1−d))."""
    wanted = (deltas - failure) / (1 - failure)
    return Cost(_smallest_mu(next_points[wanted > 0], wanted[wanted > 0]) ** 2, -math.log1p(-failure))


def _gaussian_deltas(points: NDArray[np.float64], mu: float) -> NDArray[np.float64]:
    """Φ(−e/μ + μ/2) − e^e·Φ(−e/μ − μ/2), as in `gaussian_delta`, at many points."""
    if mu == 0:
        return np.zeros(len(points))
    return np.asarray(ndtr(-points / mu + mu / 2) - np.exp(np.minimum(points + log_ndtr(-points / mu - mu / 2), 0.0)))


def _smallest_mu(points: NDArray[np.float64], wanted: NDArray[np.float64]) -> float:
    """The smallest μ with δ_μ(points) ≥ wanted, rounded up; δ_μ grows with μ."""

    def enough(mu: float) -> bool:
        return bool(np.all(_gaussian_deltas(points, mu) >= wanted))

    if not len(points):
        return 0.0
    low, high = 0.0, 1.0
    while not enough(high):
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
