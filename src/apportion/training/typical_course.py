"""What a plan whose prices follow released values may do: a run on a made-up problem, with answers that no record has touched.

The problem is the mean of ½‖w‖² over as many records as a batch is expected to have, in `DIMENSION` parameters, from weights as long as the
first threshold. Gradients and choices get the noise that they would get. It shows the kind of course that the strategies take, not the one
that they will take: that depends on the records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from apportion.accounting.rules import charge
from apportion.curator import mechanisms
from apportion.curator.randomness import Randomness, Stream
from apportion.errors import BudgetExhausted
from apportion.planning import Plan
from apportion.releases import LowestLoss, Selection, count_numbers
from apportion.request import Released, Request
from apportion.training.recipe_state import RecipeState

DIMENSION = 64
LEARNING_RATE = 0.5


@dataclass(frozen=True)
class CourseStep:
    """One draw.

    Args:
        step: 1-based.
        question: "gradient", "lowest loss" or "first gain".
        noise_multiplier: z of a gradient.
        epsilon: ε₀ of a choice, on its batch.
        selected: the step size that was chosen; 0 for none.
    """

    step: int
    question: str
    noise_multiplier: float | None = None
    epsilon: float | None = None
    selected: float | None = None


def typical_course(plan: Plan, *, seed: int = 0) -> tuple[CourseStep, ...]:
    """The draws of a run on the made-up problem, until the plan or its filter ends."""
    weights = {"parameter": torch.zeros(DIMENSION)}
    strategies = RecipeState(plan, weights, LEARNING_RATE)
    first = strategies.request(1)
    length = math.hypot(*(release.threshold for release in first.sums)) if first.sums else 1.0
    weights = {"parameter": torch.full((DIMENSION,), length / math.sqrt(DIMENSION))}
    strategies, rule = RecipeState(plan, weights, LEARNING_RATE), plan.rule()
    randomness, course = Randomness.seeded(seed), list[CourseStep]()
    for step in range(1, plan.steps + 1):
        request = strategies.request(step)
        try:
            charge(rule, request.event(), step)
        except BudgetExhausted:
            break
        released = _answer(request, weights["parameter"], randomness.next_draw().noise)
        answer = strategies.receive(released, weights)
        if strategies.steering:
            weights = dict(answer or weights)
        else:
            rate = LEARNING_RATE * strategies.rate(step)
            weights = {name: value - rate * (answer or {})[name] for name, value in weights.items()}
        strategies.settle(released, weights)
        if strategies.wants_validation(step):
            strategies.validate(1 / (1 + float(weights["parameter"].norm())))
        course.append(_describe(step, released))
    return tuple(course)


def _answer(request: Request, weights: Tensor, noise: Stream) -> Released:
    size = request.expected_batch_size
    gradient = {}
    for release in request.sums:
        clipped = weights * min(1.0, release.threshold / max(float(weights.norm()), 1e-12))
        answer = clipped if release.frame is None else clipped - release.frame.centre["parameter"]
        exact = size * (answer if release.frame is None else answer / release.frame.scale["parameter"]).double()
        noisy = mechanisms.add_gaussian_noise(exact, request.standard_deviation(release), noise, size).float()
        gradient["parameter"] = noisy if release.frame is None else release.frame.restored("parameter", noisy)
    statistics = tuple(
        float(request.standard_deviation(one) * normal / size)
        for one in request.statistics
        for normal in noise.normals(count_numbers(one))
    )
    return Released(
        request, gradient, statistics, tuple(_select(one, weights, size, noise) for one in request.selections)
    )


def _select(release: Selection, weights: Tensor, size: float, noise: Stream) -> int | None:
    def total(step_size: float) -> float:
        moved = weights - step_size * release.line.direction["parameter"]
        return size * min(0.5 * float(moved.double().square().sum()), release.bound)

    totals = torch.tensor([total(step_size) for step_size in release.line.step_sizes], dtype=torch.float64)
    if isinstance(release, LowestLoss):
        return mechanisms.noisy_argmin(totals, release, noise)
    asked = size * release.slope * torch.from_numpy(np.array(release.line.step_sizes))
    return mechanisms.above_threshold(total(0.0) - totals - asked, release, noise)


def _describe(step: int, released: Released) -> CourseStep:
    request = released.request
    if request.noised:
        return CourseStep(step, "gradient", noise_multiplier=request.noise_multiplier)
    release, index = request.selections[0], released.selected[0]
    question = "lowest loss" if isinstance(release, LowestLoss) else "first gain"
    return CourseStep(
        step,
        question,
        epsilon=release.epsilon,
        selected=0.0 if index is None else release.line.step_sizes[index],
    )
