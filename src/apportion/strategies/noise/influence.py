"""Less noise where noise does more harm to the final model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from apportion import validate
from apportion.errors import InvalidArgument
from apportion.strategies.context import Context
from apportion.strategies.noise.noise_schedule import Schedule, require_range
from apportion.validate import at_least, below_one, checked

LONGEST = 1_000_000
"""Steps of the longest run that can be planned."""


def _read_weights(argument: str, values: Any, why: str, fix: str) -> tuple[float, ...]:
    """A rule: positive numbers, at least one."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidArgument(argument, validate.shown(values), "it is not a list of numbers", fix)
    listed = tuple(validate.positive(argument, value, why, fix) for value in values)
    if not listed:
        raise InvalidArgument(argument, [], "there is no weight in it", fix)
    return listed


@dataclass(frozen=True)
class InfluenceWeighted(Schedule):
    """σ_t = σ·min((max_i q_i / q_t)^(1/4), span), where q_t is the influence of step t's noise variance on the final loss.

    Without the span this minimises Σ_t q_t·σ_t² among all schedules with the same Σ_t 1/(2σ_t²). If the loss is M-smooth and has
    ‖∇f‖² ≥ 2m·(f − f*), a step of 1/M shrinks what earlier noise did by γ = 1 − m/M, so q_t = γ^(T−t) and σ_t = σ_T·γ^(−(T−t)/4):
    late noise does most harm.

    Args:
        contraction: γ in [0, 1). Nobody knows it for a network; estimating it on private records would cost privacy.
            `None`: e^(−4/T), with which the noise falls e-fold over a run of any length (ours).
        weights: q_1..q_T instead of powers of γ, for example those of momentum. Only their ratios count.
        span: the largest ratio of two multipliers (ours). With γ = 0 all steps but the last would otherwise have infinite noise.
        multiplier: σ, that of the step with the largest influence: the last one, unless `weights` say otherwise.

    Source: Hong et al., Dynamic Privacy Budget Allocation Improves Data Efficiency of Differentially Private Gradient Descent, FAccT
    2022. Their price of sampling, q²·ρ, is a heuristic; here the true ε decides.

    Examples:
        >>> from apportion.strategies import Context, noise
        >>> weighted = noise.InfluenceWeighted(weights=(1, 16, 81))
        >>> [round(weighted.relative(Context(step, steps=3, sample_rate=0.1)), 3) for step in (1, 2, 3)]
        [3.0, 1.5, 1.0]
    """

    contraction: float | None = checked(
        None,
        below_one,
        "it is 1 − m/M, the part of the loss that a step leaves; with 1 or more a step would gain nothing and T would not matter",
        "Try contraction=0.99",
    )
    weights: tuple[float, ...] | None = checked(
        None,
        _read_weights,
        "a step without influence would have infinite noise",
        "Pass one positive weight for each step",
    )
    span: float = checked(
        100.0, at_least(1), "it is a ratio of multipliers: the largest multiplier divided by the smallest"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.contraction is not None and self.weights is not None:
            raise InvalidArgument(
                "noise.contraction", self.contraction, "noise.weights already say how much each step counts", "Drop one"
            )
        require_range("noise.span", self.span, self.span)

    @cached_property
    def _heaviest(self) -> float:
        return max(self.weights or (1.0,))

    def influence(self, context: Context) -> float:
        """q_t / max_i q_i, in [0, 1]."""
        if self.weights is None:
            contraction = math.exp(-4 / context.steps) if self.contraction is None else self.contraction
            return float(contraction ** (context.steps - context.step))
        if len(self.weights) != context.steps:
            raise InvalidArgument(
                "noise.weights",
                f"{len(self.weights)} weights",
                f"the run has {context.steps} steps, and each needs a weight of its own",
                "Pass one weight for each step",
            )
        return self.weights[context.step - 1] / self._heaviest

    def relative(self, context: Context) -> float:
        influence = self.influence(context)
        return min(self.span, influence**-0.25) if influence > 0 else self.span

    def choose_steps(
        self,
        *,
        rho: float,
        dimension: int,
        threshold: float,
        smoothness: float,
        population: int,
        gap: float,
    ) -> int:
        """The T ≥ 1 that minimises the bound γ^T + (R′/2ρ)·((1 − γ^(T/2))/(1 − γ^(1/2)))² on the loss that is left, of gap = 1.

        R′ = d·C²/(2M·N²·gap). With x = γ^(T/2) the bound is x² + a·(1 − x)², a = R′/(2ρ(1 − γ^(1/2))²), whose minimum is at
        x = a/(1 + a); T is one of the two integers beside it, at most a million. It is a plan for full batches (q = 1): no price
        depends on it.

        Args:
            rho: ρ, the zCDP to be spent: Σ_t 1/(2σ_t²).
            dimension: d, how many numbers are trained.
            threshold: C.
            smoothness: M, a bound on the curvature.
            population: N.
            gap: f(θ₁) − f*, how much loss there is to lose; a guess from public knowledge.
        """
        if self.contraction is None:
            reason = "the bound needs the contraction of one step"
            raise InvalidArgument("noise.contraction", None, reason, "Pass InfluenceWeighted(contraction=0.99)")
        rho = validate.positive("rho", rho, "it is the privacy loss to be spent", "Try rho=0.1")
        dimension = validate.whole("dimension", dimension, "it counts the trained numbers", "Try dimension=1000")
        threshold = validate.positive("threshold", threshold, "it bounds a record's gradient", "Try threshold=1.0")
        smoothness = validate.positive("smoothness", smoothness, "steps of 1/smoothness are taken", "Try 1.0")
        population = validate.whole("population", population, "it is a number of records", "Pass a published figure")
        gap = validate.positive("gap", gap, "without loss there is nothing to train", "Try gap=1.0")
        shrink = math.sqrt(self.contraction)
        distance = (1 - self.contraction) / (1 + shrink)  # 1 − γ^(1/2), also for γ next to 1
        noise = dimension * (threshold / population) * (threshold / population) / (2 * smoothness * gap)
        cost = noise / (2 * rho * distance * distance)
        if shrink == 0 or cost == math.inf:
            return 1  # one step reaches the optimum, or noise drowns every step

        def bound(steps: int) -> float:
            left = shrink**steps
            return float(left**2 + cost * (1 - left) ** 2)

        best = min(math.log1p(1 / max(cost, 1e-300)) * -2 / math.log(self.contraction), LONGEST)
        return min((max(1, math.floor(best)), max(1, math.ceil(best))), key=bound)
