"""The privacy loss of one step, put on a grid so that it can only look larger than it is.

A step on a Poisson(q) batch is dominated by the pair P = Σ_j b_j·N(j/z, 1), Q = N(0, 1), where b = (1−q, q) for one record and
b_j = Binomial(m, q)(j) for a group of m. Choices on the same batch, each ε-DP, are dominated by randomised response: an outcome o with
ln P(o)/Q(o) = c_o, the sum of ±ε over the choices, which multiplies b_j by e^{c_o} for j ≥ 1. Given o, the loss L(x) = ln P(x)/Q(x)
rises with x, so the cells of a grid of losses e_i = i·h are intervals of x, and their P- and Q-masses are differences of normal
distribution functions.

**Connect the dots.** Inside a cell [e_i, e_{i+1}] with masses (P_i, Q_i) put atoms at both ends that keep both masses:

    at e_{i+1}:  P-mass s_i/(1 − e^{−h})          with s_i = P_i − e^{e_i}·Q_i ≥ 0
    at e_i:      P-mass e^{e_i}·Q_i − s_i/(e^h − 1)

Each atom at e has Q-mass e^{−e} times its P-mass. δ(ε) of the atoms is the piecewise linear interpolation (in e^ε) of the true,
convex curve between grid points: never below it. The same atoms serve both directions: read with their P-masses at e they are the
loss of removing the record, with their Q-masses at −e that of adding it. (Doroshenko et al. 2022, connect-the-dots.)

What lies beyond the grid is moved up: to the last grid point as far as the other measure's mass allows, the rest to infinity.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, ndtr, ndtri

Array = NDArray[np.float64]
Choices = tuple[float, ...]
"""ε of each selection on a batch."""


@dataclass(frozen=True)
class StepLoss:
    """The discretised loss of one step.

    Args:
        first: index of the first atom; atom k stands at (first + k)·h.
        removed: P-masses, the loss of removing a record.
        added: Q-masses; atom k then stands at −(first + k)·h, the loss of adding a record.
        removed_infinite, added_infinite: mass that was moved to infinity.
    """

    first: int
    removed: Array
    added: Array
    removed_infinite: float
    added_infinite: float


def discretise(
    sample_rate: float, multiplier: float, choices: Choices, step: float, tail: float, group: int = 1
) -> StepLoss:
    """The loss of (q, z) and choices on the grid of width `step`, cut where less than about `tail` of probability lies outside.

    Args:
        sample_rate, multiplier: q and z.
        choices: ε of each selection on the same batch.
        step: h.
        tail: probability that may be treated pessimistically instead of exactly.
        group: m, how many records are added or removed together.
    """
    weights = _binomial(group, sample_rate)
    reach = -float(ndtri(tail))
    lowest, highest = -reach, group / multiplier + reach
    outcomes = _outcomes(choices)
    least, most = min(outcomes), max(outcomes)
    first = math.floor(float(_loss(np.array([lowest]), weights, multiplier, least)[0]) / step)
    last = max(first + 1, math.ceil(float(_loss(np.array([highest]), weights, multiplier, most)[0]) / step))
    losses: Array = np.arange(first, last + 1, dtype=np.float64) * step
    parts = [
        _on_grid(losses, weights, multiplier, offset, mass, (lowest - 1, highest + 1))
        for offset, mass in outcomes.items()
    ]
    return StepLoss(
        first,
        sum((part.removed for part in parts[1:]), parts[0].removed),
        sum((part.added for part in parts[1:]), parts[0].added),
        math.fsum(part.removed_infinite for part in parts),
        math.fsum(part.added_infinite for part in parts),
    )


def _on_grid(
    losses: Array, weights: Array, multiplier: float, offset: float, mass: float, around: tuple[float, float]
) -> StepLoss:
    """What one outcome of the choices, with c = `offset` and Q(o) = `mass`, contributes at the losses of the grid."""
    step = float(losses[1] - losses[0])
    edges = _inverse(losses, weights, multiplier, offset, *around)
    below, masses, above = (mass * part for part in _masses(edges, len(weights), multiplier))
    weights = np.concatenate([weights[:1], weights[1:] * math.exp(offset)])
    # Above 700 Q has no mass left and its factor does not matter. Below −600, where e^e would underflow, the mass of Q is left at the lower
    # end of its cell, which is the worse one for adding a record; P has none.
    exponential = np.exp(np.clip(losses, -600.0, 700.0))
    q_mass = masses[0]
    surplus = np.maximum(weights[1:] @ masses[1:] - (exponential[:-1] - weights[0]) * q_mass, 0.0)
    removed = np.zeros(len(losses))
    removed[1:] = surplus / -math.expm1(-step)
    removed[:-1] += np.maximum(exponential[:-1] * q_mass - surplus / math.expm1(step), 0.0)
    added = removed / exponential
    # Below the grid: removing sees at most the loss of the first point; adding keeps P and sends the rest of Q to infinity.
    p_below, q_below = float(weights @ below), float(below[0])
    removed[0] += p_below
    added[0] += min(q_below, p_below / exponential[0])
    added_infinite = max(0.0, q_below - p_below / exponential[0])
    # Above the grid it is the other way round.
    p_above, q_above = float(weights @ above), float(above[0])
    removed[-1] += min(p_above, q_above * exponential[-1])
    removed_infinite = max(0.0, p_above - q_above * exponential[-1])
    added[-1] += q_above
    return StepLoss(0, removed, added, removed_infinite, added_infinite)


def _outcomes(choices: Choices) -> dict[float, float]:
    """c_o and Q(o) of each outcome of randomised response at each ε of `choices`, in any order: one of the two answers is e^ε times as
    likely with the record, the other without it."""
    outcomes = {0.0: 1.0}
    for epsilon in choices:
        likelier = 1 / (1 + math.exp(min(epsilon, 700.0)))
        following: dict[float, float] = {}
        for offset, mass in outcomes.items():
            for sign, part in ((epsilon, likelier), (-epsilon, 1 - likelier)):
                following[offset + sign] = following.get(offset + sign, 0.0) + mass * part
        outcomes = following
    return outcomes


@dataclass(frozen=True)
class Sketch:
    """A few hundred points of a step's loss with their log-masses under P and Q: enough to choose a grid, not to price."""

    losses: Array
    log_p: Array
    log_q: Array

    @property
    def variance(self) -> float:
        """Of the loss under P."""
        masses = np.exp(self.log_p)
        masses /= masses.sum()
        mean = float(masses @ self.losses)
        return float(masses @ (self.losses - mean) ** 2)


@functools.lru_cache(maxsize=1024)
def sketch(
    sample_rate: float, multiplier: float, choices: Choices, tail: float, group: int = 1, points: int = 201
) -> Sketch:
    """The loss at evenly spaced x, for each outcome of the choices."""
    reach = -float(ndtri(tail))
    x = np.linspace(-reach, group / multiplier + reach, points)
    weights, outcomes = _binomial(group, sample_rate), _outcomes(choices)
    losses = np.concatenate([_loss(x, weights, multiplier, offset) for offset in outcomes])
    at_x = -(x**2) / 2 + math.log((x[1] - x[0]) / math.sqrt(2 * math.pi))
    log_q = np.concatenate([at_x + math.log(mass) for mass in outcomes.values()])
    return Sketch(losses, log_q + losses, log_q)


def _binomial(group: int, rate: float) -> Array:
    """P[Binomial(m, q) = j] for j = 0..m."""
    if rate >= 1:
        return np.array([0.0] * group + [1.0])
    count = np.arange(group + 1)
    choose = gammaln(group + 1) - gammaln(count + 1) - gammaln(group - count + 1)
    weights: Array = np.exp(choose + count * math.log(rate) + (group - count) * math.log1p(-rate))
    return weights


def _loss(x: Array, weights: Array, multiplier: float, offset: float) -> Array:
    """L(x) = ln Σ_j b_j·exp(j·x/z − j²/(2z²) + c·[j ≥ 1])."""
    with np.errstate(divide="ignore"):
        logs = np.log(weights)
    count = np.arange(len(weights))[:, None]
    terms = logs[:, None] + count * x / multiplier - count**2 / (2 * multiplier**2) + offset * (count > 0)
    largest = terms.max(axis=0)
    result: Array = largest + np.log(np.exp(terms - largest).sum(axis=0))
    return result


def _inverse(losses: Array, weights: Array, multiplier: float, offset: float, lowest: float, highest: float) -> Array:
    """The x at which L(x) = e; −∞ where e lies below all losses."""
    floor = math.log(weights[0]) if weights[0] > 0 else -math.inf
    edges = np.full(len(losses), -np.inf)
    reachable = losses > floor
    wanted = losses[reachable]
    if len(weights) == 2:
        # e = ln(1 − q + q·exp(x/z − 1/(2z²) + c)): solved for x. expm1 keeps the digits of small losses.
        # e^e − 1 + q is e^e for large e, where it would overflow, and for q = 1, where small ones would lose their digits.
        plain = (wanted > 500) | (weights[0] == 0)
        inner = np.where(plain, wanted, np.log(np.expm1(np.where(plain, 0.0, wanted)) + weights[1]))
        edges[reachable] = multiplier * (inner - math.log(weights[1]) - offset) + 1 / (2 * multiplier)
        return edges
    # No closed form for groups: bracket each edge on a fine grid of x, then halve the bracket down to rounding.
    x = np.linspace(lowest - 40.0 * multiplier, highest + 40.0, 20_001)
    known = _loss(x, weights, multiplier, offset)
    upper = np.clip(np.searchsorted(known, wanted), 1, len(x) - 1)
    low, high = x[upper - 1], x[upper]
    for _ in range(40):
        middle = (low + high) / 2
        smaller = _loss(middle, weights, multiplier, offset) < wanted
        low, high = np.where(smaller, middle, low), np.where(smaller, high, middle)
    edges[reachable] = (low + high) / 2
    return edges


def _masses(edges: Array, components: int, multiplier: float) -> tuple[Array, Array, Array]:
    """For each component N(j/z, 1): the mass below the first edge, between neighbouring edges, and above the last."""
    below, between, above = [], [], []
    for j in range(components):
        shifted = edges - j / multiplier
        lower, upper = ndtr(shifted), ndtr(-shifted)
        # On the right side differences of upper tails keep the digits that differences near 1 would lose.
        between.append(np.where(shifted[:-1] > 0, upper[:-1] - upper[1:], lower[1:] - lower[:-1]))
        below.append(lower[0])
        above.append(upper[-1])
    return np.array(below), np.array(between), np.array(above)
