"""DP-SGD of one layer, or of one hidden layer, in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apportion.accounting.accountant import PrivacyLossAccountant
from apportion.accounting.calibration import calibrate

DELTA = 1e-5
HIDDEN = 32
_AVERAGE = 0.95


@dataclass(frozen=True, eq=False)
class Split:
    """Records to train on, and others to test on. Targets are class numbers, or numbers in [0, 1] where there is one output."""

    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    outputs: int

    @property
    def width(self) -> int:
        return self.inputs.shape[1]


@cache
def multiplier(sample_rate: float, steps: int, epsilon: float) -> float:
    """The noise multiplier that spends ε."""
    return calibrate(PrivacyLossAccountant(), [1.0] * steps, sample_rate=sample_rate, epsilon=epsilon, delta=DELTA)


def simulate(
    split: Split,
    *,
    hidden: bool,
    path: float,
    epsilon: float,
    seed: int,
    threshold: float = 1.0,
    sample_rate: float = 0.2,
    steps: int = 200,
) -> float:
    """Test accuracy, or the mean absolute error of a number, of averaged weights after a path of η·T = `path`.

    The gradient of a record is (p − y) ⊗ (x, 1) of one layer, with norm ‖p − y‖·√(‖x‖² + 1); 2·(o − y) takes the place of p − y for a
    number. A hidden layer h = tanh(V·(x, 1)) adds ‖δ‖²·(‖x‖² + 1) with δ = (1 − h²)·Wᵀ(p − y).
    """
    random, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    inputs, goals = _with_one(split.inputs), _goals(split)
    squares, population = inputs.pow(2).sum(1), len(inputs)
    noise, rate = multiplier(sample_rate, steps, epsilon), path / steps
    weights = _start(split, seed, hidden=hidden)
    averages = [torch.zeros_like(one) for one in weights]
    for _ in range(steps):
        size, start = int(random.binomial(population, sample_rate)), int(random.integers(population))
        rows = torch.arange(start, start + size) % population
        sums = _clipped_sums(weights, inputs[rows], squares[rows], goals[rows], threshold, split.outputs)
        for place, total in enumerate(sums):
            noisy = total / threshold + noise * torch.randn(total.shape, generator=generator)
            weights[place] = weights[place] - rate * noisy / (sample_rate * population)
            averages[place].mul_(_AVERAGE).add_(weights[place], alpha=1 - _AVERAGE)
    return _score(split, [one / (1 - _AVERAGE**steps) for one in averages])


def _start(split: Split, seed: int, *, hidden: bool) -> list[Tensor]:
    if not hidden:
        return [torch.zeros(split.width + 1, split.outputs)]
    generator = torch.Generator().manual_seed(seed)
    shapes = (split.width + 1, HIDDEN), (HIDDEN + 1, split.outputs)
    return [(2 * torch.rand(shape, generator=generator) - 1) / math.sqrt(shape[0] - 1) for shape in shapes]


def _goals(split: Split) -> Tensor:
    if split.outputs == 1:
        return split.targets[:, None]
    return torch.nn.functional.one_hot(split.targets, split.outputs).float()


def _with_one(inputs: Tensor) -> Tensor:
    return torch.cat([inputs, torch.ones(len(inputs), 1)], 1)


def _clipped_sums(
    weights: list[Tensor], inputs: Tensor, squares: Tensor, goals: Tensor, threshold: float, outputs: int
) -> list[Tensor]:
    last = inputs if len(weights) == 1 else _with_one(torch.tanh(inputs @ weights[0]))
    answer = last @ weights[-1]
    error = 2 * (answer - goals) if outputs == 1 else torch.softmax(answer, 1) - goals
    norms = error.pow(2).sum(1) * (squares if len(weights) == 1 else last.pow(2).sum(1))
    if len(weights) == 1:
        return [inputs.T @ (error * _factor(norms, threshold))]
    back = (error @ weights[1][:-1].T) * (1 - last[:, :-1].pow(2))
    factor = _factor(norms + back.pow(2).sum(1) * squares, threshold)
    return [inputs.T @ (back * factor), last.T @ (error * factor)]


def _factor(squared: Tensor, threshold: float) -> Tensor:
    return (threshold / squared.sqrt().clamp(min=1e-12)).clamp(max=1)[:, None]


def _score(split: Split, weights: list[Tensor]) -> float:
    last: Any = _with_one(split.test_inputs)
    if len(weights) == 2:
        last = _with_one(torch.tanh(last @ weights[0]))
    answer = last @ weights[-1]
    if split.outputs == 1:
        return float((answer[:, 0] - split.test_targets).abs().mean())
    return float((answer.argmax(1) == split.test_targets).float().mean())
