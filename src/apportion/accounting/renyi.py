"""ε by Rényi differential privacy: an upper bound that is simple, additive and looser than privacy loss distributions.

The Rényi divergence of order α > 1 between a step on neighbouring data sets is ε_t(α) = ln A_α / (α − 1), where for a
Poisson-subsampled Gaussian with rate q and multiplier z

    A_α = E_{x∼N(0,1)} [(1 − q + q·e^{x/z − 1/(2z²)})^α]        (Mironov, Talwar & Zhang 2019)

This is the direction "a record is removed", which is the larger of the two. Steps add: ε(α) = Σ_t ε_t(α). Conversions to (ε, δ):

    classic    ε = min_α ε(α) + ln(1/δ)/(α − 1)                                    (Mironov 2017)
    improved   ε = min_α ε(α) + ln((α − 1)/α) − (ln δ + ln α)/(α − 1)              (Canonne, Kamath & Steinke 2020)

Divergences of Gaussians and the improved conversion are computed by Google's `dp_accounting`.

**Choices.** For a selection on the batch let x = P(o)/Q(o), where P is the law of the outcome with the record in the batch and Q without
it. ε₀-DP says ln x ∈ [−ε₀, ε₀]; a bounded range, as of Gumbel noise, says ln x ∈ [t − ε₀, t] for some t ∈ [0, ε₀]. Under Q x has mean 1,
and both E_Q (1 − q + qx)^α, a record removed, and E_Q (1 − q + qx)^{1−α}, a record added, are expectations of convex functions of x: on an
interval they are largest for the two-point law at its ends. t is covered by short pieces, each with the hull of its intervals.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from apportion import validate
from apportion.errors import InvalidArgument
from apportion.event import Choice, Event

Array = NDArray[np.float64]

ORDERS: tuple[float, ...] = (
    *(1 + k / 10 for k in range(1, 100)),
    *map(float, range(11, 64)),
    128.0,
    256.0,
    512.0,
    1024.0,
)
"""The orders that `dp_accounting` uses by default. It takes half a second to import, so it is imported where it computes."""
QUICK_ORDERS = (4.0, 8.0, 16.0, 32.0)
"""Some that are computed in no time: integers, whose series are finite."""

_ROUNDING = 1e-13  # of ln A, one step: sums of rounded logarithms must not end below the truth
_EXTREME = (
    1e-100,
    1e100,
)  # multipliers whose squares are still numbers: below, the divergence is infinite; above, that of the last one
_FEW = 40  # different multipliers that are priced one by one
_RATIO = 1.01  # of neighbouring multipliers on the lattice
_PIECES = 256  # of t: the curve of a choice is about 1 % above the truth


class RenyiAccountant:
    """An upper bound of ε for events that were fixed in advance.

    Args:
        conversion: how Rényi divergences become (ε, δ). "improved" is never worse; "classic" reproduces the multipliers of older
            papers.
    """

    upper_bound = True
    sampling = "Poisson"

    def __init__(self, conversion: Literal["improved", "classic"] = "improved"):
        self.conversion = validate.known("conversion", conversion, ["improved", "classic"])
        self.name = f"RDP ({conversion} conversion)"
        self.note = {
            "improved": "Rényi divergences add; conversion of Canonne, Kamath & Steinke 2020",
            "classic": "Rényi divergences add; conversion of Mironov 2017, as in older papers",
        }[conversion]

    def epsilon(self, events: Mapping[Event, int], delta: float) -> float:
        """The ε for which the composition of `events` is (ε, `delta`)-DP. No events cost 0."""
        validate.delta(delta)
        if not any(events.values()):
            return 0.0
        total = renyi_sum(events)
        usable = np.isfinite(total)
        if not usable.any():
            return math.inf
        orders = np.array(ORDERS)[usable]
        if self.conversion == "classic":
            return float(np.min(total[usable] - math.log(delta) / (orders - 1)))
        from dp_accounting.rdp import compute_epsilon

        return float(compute_epsilon(orders, total[usable], delta)[0])


def renyi_curve(event: Event, orders: Sequence[float] = ORDERS) -> Array:
    """ε(α) of one `event` at each of `orders`, for the worse direction. Infinite where the series did not converge.

    An allowance for rounding is included, so that sums of millions of steps stay upper bounds. Several mechanisms on one batch add up
    without sampling; a sampled batch must have one.
    """
    return _curve(event, tuple(orders)).copy()


@lru_cache(maxsize=8192)
def _curve(event: Event, orders: tuple[float, ...]) -> Array:
    """At `orders`, of which those that were asked before, in whatever company, are known: each is computed by itself."""
    known = _known(event)
    if missing := tuple(order for order in orders if order not in known):
        known.update(zip(missing, map(float, _compute(event, missing)), strict=True))
    total = np.array([known[order] for order in orders])
    total.setflags(write=False)
    return total


@lru_cache(maxsize=512)
def _known(event: Event) -> dict[float, float]:
    """ε(α) by α, as far as it was computed."""
    return {}


def _compute(event: Event, orders: tuple[float, ...]) -> Array:
    gaussian = event.noise_multiplier < math.inf
    if event.sample_rate < 1 and gaussian + len(event.choices) > 1:
        raise InvalidArgument(
            "event",
            event,
            "Rényi divergences are computed for one mechanism on a sampled batch, a Gaussian or a selection",
            "Ask in two requests, each with a batch of its own; or declare the events: a fixed plan or a multiset prices them together",
        )
    curves = [_gaussian_curve(event, orders)] if gaussian else []
    curves += [_choice_curve(event.sample_rate, choice, orders) for choice in event.choices]
    total: Array = np.sum(curves, axis=0)
    return total


def _choice_curve(rate: float, choice: Choice, orders: tuple[float, ...]) -> Array:
    """max over intervals and directions of ln E_Q[…]/(α − 1), for the two-point law at the ends of an interval (see the module's text)."""
    ends = np.linspace(0.0, choice.epsilon, _PIECES + 1)
    low, high = ends[:-1] - choice.epsilon, ends[1:]
    if not choice.bounded_range:
        low, high = np.array([-choice.epsilon]), np.array([choice.epsilon])
    span = np.log(-np.expm1(low - high))
    masses = (
        np.log(-np.expm1(low)) - high - span,
        np.log(-np.expm1(-high)) - span,
    )  # of the ends, so that the mean of x is 1
    ratios = [_log_mixture(rate, end) for end in (high, low)]
    alpha = np.array(orders)[:, None]
    removed = np.logaddexp(*(mass + alpha * ratio for mass, ratio in zip(masses, ratios, strict=True)))
    added = np.logaddexp(*(mass + (1 - alpha) * ratio for mass, ratio in zip(masses, ratios, strict=True)))
    largest: Array = np.maximum(removed, added).max(axis=1)
    curve: Array = (np.maximum(largest, 0.0) + _ROUNDING) / (np.array(orders) - 1)
    return curve


def _log_mixture(rate: float, log_x: Array) -> Array:
    """ln(1 − q + q·x): with all digits where it is small, and finite where x is not."""
    if rate == 1:
        return log_x
    small: Array = np.log1p(rate * np.expm1(np.minimum(log_x, 500.0)))
    return np.where(log_x > 500, math.log(rate) + log_x, small)


def _gaussian_curve(event: Event, orders: tuple[float, ...]) -> Array:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    if event.noise_multiplier < _EXTREME[0]:
        return np.full(len(orders), math.inf)
    accountant = RdpAccountant(orders)
    with quiet_accounting():
        multiplier = min(event.noise_multiplier, _EXTREME[1])
        accountant.compose(PoissonSampledDpEvent(event.sample_rate, GaussianDpEvent(multiplier)))
    allowance = 0.0 if event.sample_rate == 1 else _ROUNDING  # without sampling it is α/(2z²), a plain product
    curve: Array = np.maximum(accountant.rdp, 0.0) + allowance / (np.array(orders) - 1)
    return curve


@contextmanager
def quiet_accounting() -> Iterator[None]:
    """`dp_accounting` logs every order that it leaves out; an order that is infinite needs no further word."""
    logger = logging.getLogger("absl")
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled


def renyi_sum(events: Mapping[Event, float], orders: tuple[float, ...] = ORDERS) -> Array:
    """Σ_t ε_t(α) at `orders`: exact for a few different multipliers, bounded from above by interpolation for many.

    A curve takes 30 ms, too long for thousands of steps that all differ. Let s = z⁻², M_s = e^{W_s − s/2} with a Brownian motion W, and
    f(x) = (1 − q + qx)^α, so that A(s) = E f(M_s), A′ = E Gf(M_s) and A″ = E G²f(M_s) with G = ½x²·d²/dx². Differentiating,

        G²f = Gf·(1 + 2(α−2)r + ½(α−2)(α−3)r²)   with r = qx/(1 − q + qx) ∈ [0, 1),

    and the bracket is at least c = min(1, α(α−1)/2). So A″ ≥ c·A′, which says that A is convex in e^{cs}. A therefore lies
    below its chords in e^{cs}; they are taken between the multipliers 1.01^k.
    """
    chosen = [n * _curve(event, orders) for event, n in events.items() if n and event.choices]
    total: Array = np.sum(chosen, axis=0) if chosen else np.zeros(len(orders))
    for rate in sorted({event.sample_rate for event, count in events.items() if count and not event.choices}):
        counts = {event: n for event, n in events.items() if event.sample_rate == rate and n and not event.choices}
        multipliers = np.array([event.noise_multiplier for event in counts])
        nodes = np.floor(np.log(multipliers) / math.log(_RATIO))
        if len(counts) <= max(_FEW, nodes.max() - nodes.min() + 2):
            total += np.sum([n * _curve(event, orders) for event, n in counts.items()], axis=0)
        else:
            total += _chords(rate, multipliers, nodes, np.array(list(counts.values()), dtype=float), orders)
    return total


def renyi_prices(events: Mapping[Event, float], delta: float, orders: tuple[float, ...] = ORDERS) -> Array:
    """ε(δ) of `events` by each order alone, by the improved conversion; ∞ for orders that cannot be the best.

    An order costs at least what the conversion adds. Where that alone is more than the whole price of another one, its divergence is not
    computed: low orders take most of the time, and have the largest additions.
    """

    def added(some: tuple[float, ...]) -> Array:
        values = np.array(some)
        return np.asarray(np.log((values - 1) / values) - (math.log(delta) + np.log(values)) / (values - 1))

    quick = tuple(order for order in orders if order in QUICK_ORDERS)
    enough = np.nanmin(renyi_sum(events, quick) + added(quick), initial=math.inf)
    possible = added(orders) <= enough
    near = tuple(order for order, may in zip(orders, possible, strict=True) if may)
    prices = np.full(len(orders), math.inf)
    prices[possible] = renyi_sum(events, near) + added(near)
    return np.where(np.isfinite(prices), prices, math.inf)


def _chords(rate: float, multipliers: Array, nodes: Array, counts: Array, at: tuple[float, ...]) -> Array:
    """Σ counts·ε(α), each multiplier between 1.01^node and the next, by chords of A in e^{cs}."""
    orders = np.array(at)
    slope = np.minimum(1.0, orders * (orders - 1) / 2)  # c
    total = np.zeros(len(at))
    for node in np.unique(nodes):
        less, more = (Event(rate, _RATIO**k) for k in (node, node + 1))  # noise
        inside = nodes == node
        begin, end = more.noise_multiplier**-2, less.noise_multiplier**-2
        position = np.clip(multipliers[inside] ** -2.0, begin, end)[:, None]
        weight = np.expm1(slope * (position - begin)) / np.expm1(slope * (end - begin))
        low, high = (_curve(event, at) * (orders - 1) for event in (more, less))  # ln A
        with np.errstate(divide="ignore", invalid="ignore"):  # weights 0 and 1, orders that are infinite
            total += counts[inside] @ np.logaddexp(np.log1p(-weight) + low, np.log(weight) + high) / (orders - 1)
    return total
