"""Thousands of different multipliers priced with a few dozen of them.

Let u(z) = erf(1/(2√2·z)), the total variation between N(1/z, 1) and N(0, 1). For a Gaussian step with μ = 1/z,
∂δ/∂μ = φ(ε/μ − μ/2) and du/dμ = φ(μ/2), so dδ/du = exp(ε/2 − ε²/(2μ²)), which grows with μ: **δ is convex in u for every ε**.
So for z between two nodes, δ_z ≤ (1−w)·δ_{z₀} + w·δ_{z₁} with w linear in u. The right side is the curve of a mechanism that
tosses a public coin and runs one of the nodes; its loss distribution is the same mixture of the nodes' distributions. Poisson
sampling maps δ curves by a positive affine map at each ε, so it keeps the inequality, in both directions; and the hockey-stick
divergence is convex and the pair linear in q, so δ is convex in q too. Hence bilinear interpolation in (q, u) is an upper
bound, and dominating pairs compose. The error is of second order in the distance of the nodes.

Nodes bracket every point (extrapolation would err on the wrong side), and the weight is formed from erfc, which keeps its
digits where erf is close to 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfc

from apportion.request import Event

Node = tuple[float, float]
"""(q, z) of a step whose loss is discretised exactly."""

EXACT = 48
"""Up to so many different events, each is its own node."""

_BORDERS = (
    (0.0, math.log(1.005)),
    (0.8, math.log(1.01)),
    (2.0, math.log(1.02)),
)  # from which z on, distance of nodes in ln z
_RATE_DISTANCE = math.log(1.05)


@dataclass(frozen=True)
class Cell:
    """Events between the same nodes. Event t is the mixture of the four corners with weights bilinear in (rate, tv).

    Args:
        corners: nodes at (low rate, high z), (low rate, low z), (high rate, high z), (high rate, low z).
        rate, variation: the weights of the higher rate and of the lower z, for each event.
        counts: how often each event occurs.
    """

    corners: tuple[Node, Node, Node, Node]
    rate: NDArray[np.float64]
    variation: NDArray[np.float64]
    counts: NDArray[np.float64]


def cells_of(events: Mapping[Event, int], *, exact: bool) -> list[Cell]:
    """Group events by the nodes around them; with `exact`, every event is a node of its own."""
    groups: dict[tuple[Node, Node, Node, Node], list[tuple[float, float, int]]] = {}
    rates = {event.sample_rate for event in events}
    for event, count in events.items():
        q, z = event.sample_rate, event.noise_multiplier
        z_high, z_low, variation = (z, z, 0.0) if exact else _bracket_multiplier(z)
        q_low, q_high, rate = (q, q, 0.0) if exact or len(rates) <= EXACT else _bracket_rate(q)
        corners = ((q_low, z_high), (q_low, z_low), (q_high, z_high), (q_high, z_low))
        groups.setdefault(corners, []).append((rate, variation, count))
    return [
        Cell(corners, *(np.array(column, dtype=float) for column in zip(*rows, strict=True)))
        for corners, rows in groups.items()
    ]


def _bracket_multiplier(z: float) -> tuple[float, float, float]:
    """The nodes above and below z on a fixed logarithmic grid, and the weight of the lower one."""
    border, distance = max(pair for pair in _BORDERS if z >= pair[0])
    anchor = border or _BORDERS[1][0]  # so that a border is a node of both sides
    position = math.floor(math.log(z / anchor) / distance)
    low, high = (anchor * math.exp(k * distance) for k in (position, position + 1))
    low, high = min(low, z), max(high, z)  # rounding must not let a node slip inside
    # u = 1 − erfc(1/(2√2 z)); u falls as z grows.
    beyond = [float(erfc(1 / (2 * math.sqrt(2) * value))) for value in (low, z, high)]
    span = beyond[2] - beyond[0]
    return high, low, 1.0 if span <= 0 else min(1.0, max(0.0, (beyond[2] - beyond[1]) / span))


def _bracket_rate(q: float) -> tuple[float, float, float]:
    position = math.floor(math.log(q) / _RATE_DISTANCE)
    low, high = min(q, math.exp(position * _RATE_DISTANCE)), max(q, min(1.0, math.exp((position + 1) * _RATE_DISTANCE)))
    return low, high, 0.0 if high <= low else (q - low) / (high - low)
