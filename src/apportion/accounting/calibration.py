"""Find the noise that spends a budget, and not more.

A schedule gives the *shape* r_1..r_T of the multipliers; one factor c makes it z_t = c·r_t, and ε falls as c grows. The central limit
theorem gives a proxy in closed form, ε̂(c) from μ² = q²·Σ(exp((c·r_t)⁻²) − 1), which is wrong by a few percent but has the right slope. So
the first c comes from it, the second corrects it by the ratio just found, and from then on a secant in (ln c, ln ε) through the last two
exact prices is followed: three or four prices suffice. Where many multipliers differ, most of these are prices of a sketch, a few
multipliers with the same μ², and the schedule itself is priced once or twice. The answer is always on the safe side: the price of the
schedule itself is in [0.998, 1]·target.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from apportion import validate
from apportion.accounting.accountant import Accountant, count_events
from apportion.accounting.gaussian import gaussian_epsilon
from apportion.errors import InvalidArgument
from apportion.event import Event

TOLERANCE = 0.002
SKETCHED = 48
"""With more different multipliers than that, a sketch of them is priced first."""
_SKETCH = 8
_LIMITS = (0.02, 1e6)  # multipliers outside are either no protection or no signal
_ROUNDS = 40

Array = NDArray[np.float64]


@dataclass(frozen=True)
class _Steps:
    """Relative multipliers `values`, each `counts` times, on batches of one rate, and events whose noise is given."""

    values: Array
    counts: NDArray[np.int64]
    rate: float
    beside: Sequence[Event]

    def events(self, scale: float) -> Counter[Event]:
        """All of them, with noise `scale`·r."""
        found = count_events(self.beside)
        for value, count in zip((scale * self.values).tolist(), self.counts.tolist(), strict=True):
            found[Event(self.rate, value)] += count
        return found

    def spread(self, scale: float) -> Array:
        """What each multiplier adds to μ²/q² by the central limit theorem; exact for q = 1, where the sum of μ² is the whole truth."""
        inverse = (scale * self.values) ** -2.0
        return inverse if self.rate == 1 else np.expm1(np.minimum(inverse, 500.0))

    def proxy(self, scale: float, delta: float) -> float:
        """ε̂ at `scale`."""
        given = math.fsum(event.noise_multiplier**-2 for event in self.beside)
        mu = math.sqrt(self.rate**2 * float(self.counts @ self.spread(scale)) + given)
        return gaussian_epsilon(min(mu, 1e3), delta)

    def sketch(self, scale: float) -> _Steps:
        """A few multipliers in place of many: each stands for neighbours that make up an equal part of μ² at `scale`."""
        spread = self.spread(scale)
        parts = np.cumsum(self.counts * spread)
        member = np.minimum((_SKETCH * parts / parts[-1]).astype(np.int64), _SKETCH - 1)
        counts = np.bincount(member, self.counts, _SKETCH)
        kept = counts > 0
        mean = np.bincount(member, self.counts * spread, _SKETCH)[kept] / counts[kept]
        return _Steps(np.log1p(mean) ** -0.5 / scale, counts[kept].astype(np.int64), self.rate, self.beside)


def calibrate(
    accountant: Accountant,
    shape: Sequence[float],
    *,
    sample_rate: float,
    epsilon: float,
    delta: float,
    beside: Sequence[Event] = (),
) -> float:
    """The factor c for which the steps (q, c·r_t) cost at most `epsilon` and at least 0.998·`epsilon`.

    Args:
        beside: events on all records (q = 1) whose noise is given, and which are paid for by the same ε.

    Raises `InvalidArgument` naming the closest reachable ε if no multiplier between 0.02 and a million will do.

    Examples:
        >>> from apportion.accounting.accountant import PrivacyLossAccountant
        >>> from apportion.accounting.calibration import calibrate
        >>> shape = [1.0] * 1000
        >>> round(calibrate(PrivacyLossAccountant(), shape, sample_rate=0.01, epsilon=2.0, delta=1e-5), 2)
        0.96
    """
    sample_rate = validate.probability("sample_rate", sample_rate, "each record is drawn with it", "Use 0.01")
    epsilon = validate.positive("epsilon", epsilon, "it is the privacy loss to be spent", "Try epsilon=3.0")
    delta = validate.delta(delta)
    values, counts = np.unique(np.asarray(shape, dtype=float), return_counts=True)
    least, most = float(values.min()), float(values.max())
    if not _LIMITS[0] * most <= _LIMITS[1] * least:
        raise InvalidArgument(
            "noise",
            f"multipliers from {least:g} to {most:g} times the scale",
            "no scale brings them all between 0.02 and a million, where they protect and leave a signal",
            "Let the multipliers of the schedule differ less",
        )
    limits = _LIMITS[0] / least, _LIMITS[1] / most
    steps = _Steps(values, counts, sample_rate, beside)

    def proxy(scale: float) -> float:
        return steps.proxy(scale, delta)

    start = _solve(proxy, epsilon * (1 - TOLERANCE / 2), *limits)
    if sample_rate < 1 and len(values) > SKETCHED:
        sketch = steps.sketch(start)
        with suppress(InvalidArgument):  # whether there is a scale is for the schedule itself to say
            start = _search(
                lambda scale: accountant.epsilon(sketch.events(scale), delta), proxy, epsilon, start, limits
            )
    return _search(lambda scale: accountant.epsilon(steps.events(scale), delta), proxy, epsilon, start, limits)


def _search(
    price: Callable[[float], float],
    proxy: Callable[[float], float],
    epsilon: float,
    start: float,
    limits: tuple[float, float],
) -> float:
    """A scale whose price is in [0.998, 1]·`epsilon`, from `start` on; `proxy` has about the slope of the price, and both fall."""
    (low, high), aim = limits, epsilon * (1 - TOLERANCE / 2)
    too_little, too_much = low, high  # scales whose noise is known, or assumed, to be too small and enough
    closest = math.inf
    points: list[tuple[float, float]] = []
    scale = start
    untested = {low, high}
    for _ in range(_ROUNDS):
        spent = price(scale)
        untested.discard(scale)
        closest = min(closest, spent, key=lambda found: abs(found - epsilon))
        if (1 - TOLERANCE) * epsilon <= spent <= epsilon:
            return scale
        if spent <= epsilon:
            too_much = min(too_much, scale)
        else:
            too_little = max(too_little, scale)
        if too_much <= low * (1 + 1e-9) or too_little >= high * (1 - 1e-9):
            break
        if spent < math.inf:
            points.append((math.log(scale), math.log(max(spent, 1e-300))))
        if spent == math.inf:
            guess = math.inf  # nothing to follow: halve the bracket
        elif len(points) > 1 and points[-1][1] != points[-2][1]:
            (x0, y0), (x1, y1) = points[-2:]
            logarithm = x1 + (math.log(aim) - y1) * (x1 - x0) / (y1 - y0)
            guess = low if logarithm <= math.log(low) else high if logarithm >= math.log(high) else math.exp(logarithm)
        else:
            guess = _solve(proxy, aim * proxy(scale) / spent if spent > 0 else math.inf, low, high)
        scale = guess if too_little < guess < too_much or guess in untested else math.sqrt(too_little * too_much)
    raise InvalidArgument(
        "epsilon",
        epsilon,
        f"no noise multiplier reaches it with these steps and this sampling rate, the closest is {closest:.4g}",
        "Change epsilon, the number of steps or the sampling rate",
    )


def longest_affordable(
    accountant: Accountant, events: Sequence[Event], *, epsilon: float, delta: float, beside: Sequence[Event] = ()
) -> int:
    """How many of the first `events` fit into the budget, beside others: ε grows with every event, so bisection finds it."""
    if accountant.epsilon(count_events([*events, *beside]), delta) <= epsilon:
        return len(events)
    fits, exceeds = 0, len(events)
    while exceeds - fits > 1:
        middle = (fits + exceeds) // 2
        if accountant.epsilon(count_events([*events[:middle], *beside]), delta) <= epsilon:
            fits = middle
        else:
            exceeds = middle
    return fits


def _solve(proxy: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """The scale at which the falling function `proxy` takes the value `wanted`, or the nearer limit."""

    def gap(logarithm: float) -> float:
        return math.log(max(proxy(math.exp(logarithm)), 1e-300) / wanted)

    if wanted == 0:
        return high
    if wanted == math.inf or gap(math.log(low)) <= 0:
        return low
    if gap(math.log(high)) >= 0:
        return high
    return math.exp(float(brentq(gap, math.log(low), math.log(high), xtol=1e-6)))
