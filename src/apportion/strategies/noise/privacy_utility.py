"""Noise in proportion to the gradient, as an upper bound on the gradient's norm foresees it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from apportion import validate
from apportion.errors import InvalidArgument
from apportion.strategies.noise.noise_schedule import Decay, Pace
from apportion.validate import checked, one_of, positive

Loss = Literal["strongly convex", "convex", "non-convex"]
_SHORTEST = {
    "strongly convex": (2, "it is 2M/m, and the curvature m is at most M"),
    "convex": (8, "it is 4M·D²/Δ₀, and the loss Δ₀ is at most M·D²/2"),
}


@dataclass(frozen=True)
class PrivacyUtility(Decay):
    """σ_t² = σ₀²·b_t, where b_t bounds how the squared gradient norm falls while t = 0, 1, 2, … steps are over.

    A step η of noisy gradient descent on an M-smooth loss F lowers it by at least U = η‖∇F‖² − (M·η²/2)(‖∇F‖² + d·σ²) on average,
    where σ is the standard deviation of the noise on the mean gradient. If privacy costs 1/σ, the cost of progress (1/σ)/U is least
    for

        σ = ‖∇F‖/√d,   η = 1/(2M),   and then U = ‖∇F‖²/(4M).

    (If it costs 1/σ², as in zCDP, more noise is always better and there is no optimum.) The norm is private, so a bound takes its place,
    derived here from steps that gain U; Δ₀ is the loss at the start less its minimum, D the distance to the minimum:

        strongly convex   b_t = (1 − 1/h)^t    h = 2M/m ≥ 2        from ‖∇F‖² ≤ 2M·(F − F*), ‖∇F‖² ≥ 2m·(F − F*)
        convex            b_t = 1/(1 + t/h)    h = 4M·D²/Δ₀ ≥ 8    from F − F* ≤ D·‖∇F‖
        non-convex        b_t = 1/(1 + t)                          from Σ_t ‖∇F‖²/(4M) ≤ Δ₀: the smallest of them

    It is the shape that counts: with noise from a bound instead of the norm a step can gain less than U.

    Args:
        loss: "strongly convex" (or only with ‖∇F‖² ≥ 2m·(F − F*)), "convex" or "non-convex".
        horizon: h, for the first two.
        multiplier: z₀; `published_multiplier` computes the one of the paper.

    Source: Fay et al., Adaptive Hyperparameter Selection for Differentially Private Gradient Descent, TMLR 2023.

    Examples:
        >>> from apportion.strategies import Context, noise
        >>> falling = noise.PrivacyUtility("convex", horizon=10.0)
        >>> [round(falling.relative(Context(step, steps=100, sample_rate=0.1)), 3) for step in (1, 11, 31)]
        [1.0, 0.707, 0.5]
    """

    loss: Loss = checked("non-convex", one_of(*get_args(Loss)), "a schedule is known for three kinds of loss")
    horizon: float | None = checked(None, positive, "it is a number of steps", "Try horizon=1000.0")
    per: Pace = field(default="step", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss == "non-convex":
            if self.horizon is not None:
                reason = "the bound for non-convex losses, 1/(1 + t), has no horizon"
                raise InvalidArgument("noise.horizon", self.horizon, reason, "Leave it out")
            return
        least, why = _SHORTEST[self.loss]
        if self.horizon is None:
            reason = f"a {self.loss} loss needs it: {why}"
            raise InvalidArgument("noise.horizon", None, reason, f"Pass a number of steps, at least {least}")
        if self.horizon < least:
            reason = f"for a {self.loss} loss {why}"
            raise InvalidArgument("noise.horizon", self.horizon, reason, f"Use at least {least}")

    def decay(self, elapsed: int) -> float:
        if self.loss == "strongly convex":
            return float((1 - 1 / self._steps) ** (elapsed / 2))
        return 1 / math.sqrt(1 + elapsed / self._steps)

    @property
    def _steps(self) -> float:
        return 1.0 if self.horizon is None else self.horizon

    @staticmethod
    def published_multiplier(
        gradient_norm: float, *, dimension: int, expected_batch_size: float, threshold: float
    ) -> float:
        """z = σ·B/C for σ = ‖∇F‖/√d: the noise on a sum of B gradients, in units of the threshold C.

        Args:
            gradient_norm: a public bound on ‖∇F‖ at the start, for example √(2M·Δ₀), or √(4M·Δ₀) for non-convex losses.
            dimension: d, how many numbers are trained.
            expected_batch_size: B = q·N.
            threshold: C.
        """
        norm = validate.positive("gradient_norm", gradient_norm, "noise is in proportion to it", "Try √(2·M·Δ₀)")
        numbers = validate.whole("dimension", dimension, "it counts the trained numbers", "Try dimension=1000")
        size = validate.positive("expected_batch_size", expected_batch_size, "sums are divided by it", "Use q·N")
        bound = validate.positive("threshold", threshold, "it bounds what one record can do", "Try threshold=1.0")
        return norm / math.sqrt(numbers) * size / bound
