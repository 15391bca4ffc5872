"""What it costs to train several times and to keep the best model (Papernot & Steinke 2021, "Hyperparameter tuning with Rényi DP").

Draw a random number K of runs, independently of everything else; run each with settings drawn at random; publish only the best.
With ε(λ) the Rényi curve of one run:

    truncated negative binomial with shape η and parameter γ (η = 0 logarithmic, η = 1 geometric):
        ε′(λ) = ε(λ) + (1 + η)·min_λ̂ [(1 − 1/λ̂)·ε(λ̂) + ln(1/γ)/λ̂] + ln E[K]/(λ − 1)
    Poisson with mean m (η = ∞): ε′(λ) = ε(λ) + m·δ̂ + ln m/(λ − 1), where one run is (ln(1 + 1/(λ − 1)), δ̂)-DP

Guarantee: an upper bound for the one model that is published, with its score. The theorem is about runs whose *output is the model
together with its score*, and ε(λ) is the price of both. So a score may be

- public: computed from the model and public data;
- released: from the private records with noise, by draws that are among the events of each run.

An exact score on the private records is neither, be it their accuracy or that of a held-out part: a run together with it has no finite
ε, and choosing by it is not covered at any price. Say each run publishes a fair coin, which costs nothing, and the score prefers heads
if a certain record is there and tails if it is not: the best of ten runs tells which, except once in a thousand times.

K must really be drawn: "I tried ten and stopped" is not covered. Nor are the other runs: publishing them, or their scores, costs what
all of them cost together. With a Poisson number K may be 0, and then nothing is published.

**Several candidates.** A trial first draws which candidate it is, independently of everything, and publishes that too. The divergence of
order λ of such a labelled mixture is ln(Σ_j w_j·e^{(λ−1)·ε_j(λ)})/(λ − 1) ≤ max_j ε_j(λ), whatever the weights w_j: the formula is applied
to the pointwise maximum of the candidates' curves.

`selection_epsilon` is computed by `dp_accounting`. `Selection` prices a search with several candidates by the formula above; a test
compares the two. Both convert to (ε, δ) by the improved conversion (`renyi.py`).
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import brentq

from apportion import validate
from apportion.accounting.buckets import bucket_multipliers, require_gaussian
from apportion.accounting.renyi import ORDERS, Array, quiet_accounting, renyi_sum
from apportion.accounting.rules import FixedPlan
from apportion.errors import InvalidArgument
from apportion.event import Event

SHAPES = {"logarithmic": 0.0, "geometric": 1.0, "poisson": math.inf}
SCORES = ("public", "released")
MOST_TRIALS = 10_000
"""The largest expected number of trials."""
WORD = 128
"""Bits of the random word from which the number of trials is drawn."""
_DIGITS = 60
_ORDERS = np.array(ORDERS)


def selection_epsilon(
    events: Mapping[Event, int],
    delta: float,
    *,
    expected_runs: float,
    score: str,
    runs: str | float = "logarithmic",
) -> float:
    """ε of publishing the best of K runs that each consist of `events`.

    Args:
        events: one run, with the draws of its score if that is released. More than 40 different multipliers are rounded down, which can
            only raise ε.
        delta: δ.
        expected_runs: E[K] ≥ 1.
        score: by what runs are judged: "public" for a score on public data, "released" for one from the private records whose noisy
            release is among `events`. Nothing else has a price.
        runs: the distribution of K: "logarithmic" (cheapest for many runs), "geometric", "poisson", or the shape η ≥ 0 of a
            truncated negative binomial.
    """
    validate.delta(delta)
    if not isinstance(score, str) or score not in SCORES:
        raise InvalidArgument(
            "score",
            validate.shown(score),
            "runs can be judged by a public score, or by one that each run releases with noise and pays for; an exact score on the "
            "private records has no price",
            'Pass score="public", or score="released" with its draws among the events',
        )
    if validate.positive("expected_runs", expected_runs, "it is a mean", "Use at least 1") < 1:
        raise InvalidArgument("expected_runs", expected_runs, "fewer than one run selects nothing", "Use at least 1")
    shape = SHAPES[validate.known("runs", runs, SHAPES)] if isinstance(runs, str) else runs
    if not (isinstance(shape, float) and shape == math.inf):
        shape = validate.non_negative("runs", shape, "it is a shape", "Use 0 or more")
    require_gaussian(events)  # of an event with selections only its Gaussian would be counted below
    from dp_accounting import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.dp_event import RepeatAndSelectDpEvent
    from dp_accounting.rdp import RdpAccountant

    steps = [
        SelfComposedDpEvent(PoissonSampledDpEvent(event.sample_rate, GaussianDpEvent(event.noise_multiplier)), n)
        for event, n in bucket_multipliers(events).items()
    ]
    if not steps:
        return 0.0
    accountant = RdpAccountant()
    with quiet_accounting():
        accountant.compose(RepeatAndSelectDpEvent(ComposedDpEvent(steps), expected_runs, shape))
    return float(accountant.get_epsilon(delta))


@dataclass(frozen=True)
class NumberOfTrials:
    """K: truncated negative binomial with shape η and the parameter γ that gives it the mean E[K].

        P(K = k) = (1 − γ)^k/Z · Π_{l=1}^{k−1} (l + η)/(l + 1),   Z = (γ^{−η} − 1)/η, or ln(1/γ) for η = 0;   k = 1, 2, …
        E[K] = (1 − γ)/(γ·Z·γ^η)

    Args:
        mean: E[K] > 1.
        shape: η ≥ 0, or its name: "logarithmic" (0) or "geometric" (1).

    Examples:
        >>> from apportion.accounting.selection import NumberOfTrials
        >>> trials = NumberOfTrials(10, "geometric")
        >>> round(trials.gamma, 6), [round(p, 4) for _, p in zip(range(2), trials.probabilities())]
        (0.1, [0.1, 0.09])
    """

    mean: float
    shape: float | str = "logarithmic"

    def __post_init__(self) -> None:
        reason, fix = "one trial is a run, and none selects nothing", "Try expected_trials=10"
        mean = validate.positive("expected_trials", self.mean, reason, fix)
        if not 1 < mean <= MOST_TRIALS:
            raise InvalidArgument("expected_trials", mean, f"it must lie above 1 and be at most {MOST_TRIALS:,}", fix)
        named = {name: shape for name, shape in SHAPES.items() if shape < math.inf}
        shape = self.shape
        if isinstance(shape, str):
            shape = named[validate.known("distribution", shape, named, "the number of trials is not drawn so")]
        shape = validate.non_negative("distribution", shape, "it is a shape", 'Use "logarithmic", "geometric" or 0.5')
        if shape > 100:
            raise InvalidArgument("distribution", shape, "its price grows with 1 + η", "Use a shape of at most 100")
        validate.store(self, mean=mean, shape=shape)

    @property
    def name(self) -> str:
        """Of the distribution, for people."""
        names = {shape: name for name, shape in SHAPES.items()}
        return names.get(float(self.shape), f"truncated negative binomial with shape {self.shape:g}")

    @cached_property
    def gamma(self) -> float:
        """γ. All else follows from it, the price and the draw alike, so that its own rounding does not matter."""
        return math.exp(brentq(lambda log: math.log(self._mean(math.exp(log)) / self.mean), -40.0, -1e-12, xtol=1e-13))

    def _mean(self, gamma: float) -> float:
        eta, scale = float(self.shape), -math.log(gamma)
        return (1 / gamma - 1) * (1 / scale if eta == 0 else eta / -math.expm1(-eta * scale))

    @property
    def expected(self) -> float:
        """E[K] for this γ."""
        return self._mean(self.gamma)

    def probabilities(self) -> Iterator[float]:
        """P(K = 1), P(K = 2), …"""
        return map(float, self._exact_probabilities())

    def _exact_probabilities(self) -> Iterator[decimal.Decimal]:
        with decimal.localcontext(prec=_DIGITS):
            gamma, eta = decimal.Decimal(self.gamma), decimal.Decimal(float(self.shape))
            probability = (1 - gamma) / (-gamma.ln() if eta == 0 else (gamma**-eta - 1) / eta)
        number = 1
        while True:
            yield probability
            with decimal.localcontext(prec=_DIGITS):
                probability *= (1 - gamma) * (number + eta) / (number + 1)
            number += 1

    def quantile(self, word: int) -> int:
        """The smallest k with P(K ≤ k) > word/2¹²⁸: a draw of K, if `word` is a uniform whole number below 2¹²⁸.

        Sums have sixty digits, so the distribution is the stated one but for 2⁻¹²⁸: no allowance is needed.
        """
        with decimal.localcontext(prec=_DIGITS):
            wanted, total = decimal.Decimal(word) / 2**WORD, decimal.Decimal(0)
        for number, probability in enumerate(self._exact_probabilities(), start=1):
            with decimal.localcontext(prec=_DIGITS):
                total += probability
            if total > wanted:
                return number
        raise AssertionError("probabilities have no end")

    def describe(self) -> dict[str, Any]:
        """The distribution as data."""
        return {"expected_trials": self.mean, "distribution": self.name, "shape": self.shape, "gamma": self.gamma}


@dataclass(frozen=True)
class Selection:
    """The price of a search: K trials, each a candidate that was drawn at random, and only the best of them is published.

    Args:
        candidates: the events of one trial with each candidate; equal ones once are enough.
        trials: the distribution of K.
    """

    candidates: Sequence[Mapping[Event, int]]
    trials: NumberOfTrials
    accountant: ClassVar[str] = "RDP of a selection (Papernot & Steinke 2021)"

    @cached_property
    def single(self) -> Array:
        """The largest Rényi divergence of one trial, over the candidates, at each order."""
        return np.asarray(np.max([renyi_sum(events) for events in self.candidates], axis=0))

    @cached_property
    def curve(self) -> Array:
        """ε′(λ) of the published trial at `ORDERS`. Divergences grow with their order, so one at a higher order is a bound too."""
        orders, eta, gamma = _ORDERS, float(self.trials.shape), self.trials.gamma
        others = (1 + eta) * float(np.min((1 - 1 / orders) * self.single - math.log(gamma) / orders))
        curve = self.single + others + math.log(self.trials.expected) / (orders - 1)
        return np.minimum.accumulate(curve[::-1])[::-1]

    def epsilon(self, delta: float) -> float:
        """The ε for which the published trial is (ε, `delta`)-DP."""
        from dp_accounting.rdp import compute_epsilon

        usable = np.isfinite(self.curve)
        if not usable.any():
            return math.inf
        return float(compute_epsilon(_ORDERS[usable], self.curve[usable], validate.delta(delta))[0])

    def deltas(self, points: Array) -> Array:
        """δ(e) at each of `points`: min_α e^{(α−1)(ε′(α)−e)}·(1 − 1/α)^{α−1}/α (Canonne, Kamath & Steinke 2020), at most 1."""
        orders, curve = _ORDERS[np.isfinite(self.curve)], self.curve[np.isfinite(self.curve)]
        exponents = (orders - 1) * (curve - points[:, None] + np.log1p(-1 / orders)) - np.log(orders)
        return np.asarray(np.exp(exponents.min(axis=1, initial=0.0)))

    def describe(self) -> dict[str, Any]:
        """The search as data."""
        return {**self.trials.describe(), "different_prices": len(self.candidates)}


class TrialOfSearch(FixedPlan):
    """The rule of one trial: its own plan, step by step; what it costs is the price of the search, which was charged as a whole.

    *Why it is valid.* The trial's tokens are among the candidates of the selection, so whatever it publishes, if it is the one that is
    published, is covered by `Selection.epsilon`. Nothing smaller is a guarantee: `adaptive` keeps the account from quoting the trial alone.

    Args:
        tokens, spare: as of `FixedPlan`.
        search: the price of the search.
        data_set: what the ledger that the search was charged to promises, for the statement.
    """

    name = "best trial of a private search"
    adaptive = True

    def __init__(
        self, tokens: Sequence[Event], spare: int, search: Selection, data_set: Mapping[str, Any] | None = None
    ):
        super().__init__(tokens, spare)
        self.search, self.data_set, trials = search, data_set, search.trials
        drawn = f"{trials.name} with mean {trials.mean:g}"
        self.terms = f"{self.name}: the number of trials {drawn}, γ = {trials.gamma!r}"
        self.validity = (
            f"best of a random number of trials ({drawn}), drawn once and kept secret, each with settings drawn at random; they were "
            "ranked by public data, the whole search was charged before the first of them, and only this one is published; the price is "
            "that of a selection from the largest of the candidates' Rényi curves (Papernot & Steinke 2021)"
        )

    def epsilon(self, delta: float, group: int | None = None) -> float:
        return self.search.epsilon(delta)
