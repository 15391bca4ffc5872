"""Find the noise that spends a budget, and not more.

A schedule gives the *shape* r_1..r_T of the multipliers; one factor c makes it z_t = c·r_t, and ε falls as c grows. The central limit
theorem gives a proxy in closed form, ε̂(c) from μ² = q²·Σ(exp((c·r_t)⁻²) − 1), which is wrong by a few percent but has the right slope. So
the first c comes from it, the second corrects it by the ratio just found, and from then on a secant in (ln c, ln ε) through the last two
exact prices is followed: three or four prices suffice. The answer is always on the safe side: ε in [0.998, 1]·target.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from apportion import validate
from apportion.accounting.accountant import Accountant, count_events
from apportion.accounting.gaussian import gaussian_epsilon
from apportion.errors import InvalidArgument
from apportion.event import Event

TOLERANCE = 0.002
_LIMITS = (0.02, 1e6)  # multipliers outside are either no protection or no signal
_ROUNDS = 40


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
    low, high = _LIMITS[0] / least, _LIMITS[1] / most
    aim = epsilon * (1 - TOLERANCE / 2)
    given = math.fsum(event.noise_multiplier**-2 for event in beside)

    def price(scale: float) -> float:
        return accountant.epsilon(count_events([*(Event(sample_rate, scale * r) for r in shape), *beside]), delta)

    def proxy(scale: float) -> float:
        return _central_limit(scale * values, counts, sample_rate, delta, given)

    too_little, too_much = low, high  # scales whose noise is known, or assumed, to be too small and enough
    closest = math.inf
    points: list[tuple[float, float]] = []
    scale = _solve(proxy, aim, low, high)
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


def _central_limit(
    multipliers: NDArray[np.float64], counts: NDArray[np.int64], rate: float, delta: float, given: float
) -> float:
    """ε̂ with a `given` part of μ²; exact for q = 1, where the sum of μ² is the whole truth."""
    inverse = multipliers**-2.0
    spread = inverse if rate == 1 else np.expm1(np.minimum(inverse, 500.0))
    return gaussian_epsilon(min(math.sqrt(rate**2 * float(counts @ spread) + given), 1e3), delta)


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
