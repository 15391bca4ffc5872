"""Find the noise that spends a budget, and not more.

A schedule gives the *shape* r_1..r_T of the multipliers; one factor c makes it z_t = c·r_t. ε falls as c grows, so the smallest
c with ε(c) ≤ target is found by bracketing and then by a secant in (ln c, ln ε), where the curve is almost straight. The
answer is always on the safe side: ε in [0.998, 1]·target.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from apportion.accounting.accountant import Accountant, count_events
from apportion.errors import InvalidArgument
from apportion.request import Event

TOLERANCE = 0.002
_LIMITS = (0.2, 1e4)  # multipliers outside are either no protection or no signal
_ROUNDS = 60


def calibrate(
    accountant: Accountant, shape: Sequence[float], *, sample_rate: float, epsilon: float, delta: float
) -> float:
    """The factor c for which the steps (q, c·r_t) cost at most `epsilon` and at least 0.998·`epsilon`.

    Raises `InvalidArgument` naming the closest reachable ε if no multiplier between 0.2 and 10,000 will do.
    """
    low, high = (limit / max(shape) if limit < 1 else limit / min(shape) for limit in _LIMITS)

    def price(scale: float) -> float:
        return accountant.epsilon(count_events(Event(sample_rate, scale * r) for r in shape), delta)

    scale = min(max(sample_rate * math.sqrt(len(shape)) / epsilon + 0.5, low), high)  # near the central-limit answer
    spent = price(scale)
    too_little, too_much = (low, math.inf), (high, 0.0)  # (scale, ε): noise that is too small, noise that is enough
    for _ in range(_ROUNDS):
        if spent <= epsilon:
            too_much = (scale, spent)
            if spent >= (1 - TOLERANCE) * epsilon:
                return scale
            if scale <= low:
                raise _unreachable(epsilon, spent, "even the smallest noise costs less")
        else:
            too_little = (scale, spent)
            if scale >= high:
                raise _unreachable(epsilon, spent, "even the largest noise costs more")
        scale = _next(too_little, too_much, epsilon)
        spent = price(scale)
    raise _unreachable(epsilon, too_much[1], "the search did not converge")


def _next(too_little: tuple[float, float], too_much: tuple[float, float], epsilon: float) -> float:
    """Secant on the log-log line, aimed a little inside the budget; bisection or doubling while one end is unknown."""
    aim = epsilon * (1 - TOLERANCE / 2)
    (c1, e1), (c2, e2) = too_little, too_much
    if math.isinf(e1):
        return max(c1, c2 / 2 if e2 < epsilon / 2 else c2 * (e2 / aim) * 0.98)
    if e2 == 0.0:
        return min(c2, c1 * 2 if e1 > 2 * epsilon else c1 * (e1 / aim) * 1.02)
    slope = (math.log(e2) - math.log(e1)) / (math.log(c2) - math.log(c1))
    guess = math.exp(math.log(c1) + (math.log(aim) - math.log(e1)) / slope)
    return guess if c1 < guess < c2 else math.sqrt(c1 * c2)


def _unreachable(epsilon: float, closest: float, why: str) -> InvalidArgument:
    return InvalidArgument(
        "epsilon",
        epsilon,
        f"no noise multiplier reaches it with these steps and this sampling rate: {why}, the closest is {closest:.4g}",
        "Change epsilon, the number of steps or the sampling rate",
    )


def longest_affordable(accountant: Accountant, events: Sequence[Event], *, epsilon: float, delta: float) -> int:
    """How many of the first `events` fit into the budget: ε grows with every event, so bisection finds it."""
    if accountant.epsilon(count_events(events), delta) <= epsilon:
        return len(events)
    fits, exceeds = 0, len(events)
    while exceeds - fits > 1:
        middle = (fits + exceeds) // 2
        if accountant.epsilon(count_events(events[:middle]), delta) <= epsilon:
            fits = middle
        else:
            exceeds = middle
    return fits
