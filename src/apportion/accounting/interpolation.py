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

from apportion.event import Event

Array = NDArray[np.float64]
Node = tuple[float, float, tuple[float, ...]]
"""(q, z, the ε of each choice) of a step whose loss is discretised exactly."""

EXACT = 48
"""Up to so many different events, each is its own node."""

_BORDERS = np.array([1.5, 4.0])  # the smaller z, the stronger δ bends between nodes
_DISTANCES = np.log([1.01, 1.02, 1.03])  # of nodes in ln z: below, between and above the borders
_ANCHORS = np.array([1.5, 1.5, 4.0])
_RATE_DISTANCE = math.log(1.05)
_WIDEST = 32  # times the usual distance, for steps that hardly matter


@dataclass(frozen=True)
class Cell:
    """Events between the same nodes. Event t is the mixture of the four corners with weights bilinear in (rate, tv).

    Args:
        corners: nodes at (low rate, high z), (low rate, low z), (high rate, high z), (high rate, low z).
        rate, variation: the weights of the higher rate and of the lower z, for each event.
        counts: how often each event occurs.
    """

    corners: tuple[Node, Node, Node, Node]
    rate: Array
    variation: Array
    counts: Array

    @property
    def weights(self) -> Array:
        """(events, 4): how much of each corner an event is."""
        q, w = self.rate, self.variation
        return np.stack([(1 - q) * (1 - w), (1 - q) * w, q * (1 - w), q * w], axis=1)


def cells_of(events: Mapping[Event, int], *, exact: bool, density: int = 1) -> list[Cell]:
    """Group events by the nodes around them; with `exact`, every event is a node of its own.

    Args:
        density: how many times closer the nodes are: the smaller δ, the more δ bends between them.
    """
    own: dict[Event, int] = {}
    between: dict[Event, int] = {}
    for event, n in events.items():  # for choices nothing is proved about nodes
        (own if exact or event.choices else between)[event] = n
    nodes = [_own_cell(event, n) for event, n in own.items()]
    return nodes + (_between_nodes(between, density) if between else [])


def _own_cell(event: Event, count: int) -> Cell:
    node = event.sample_rate, event.noise_multiplier, tuple(choice.epsilon for choice in event.choices)
    return Cell((node,) * 4, np.zeros(1), np.zeros(1), np.array([float(count)]))


def _between_nodes(events: Mapping[Event, int], density: int) -> list[Cell]:
    """Cells of Gaussian events between nodes of a fixed lattice."""
    size = len(events)
    rates = np.fromiter((event.sample_rate for event in events), float, size)
    multipliers = np.fromiter((event.noise_multiplier for event in events), float, size)
    counts = np.fromiter(events.values(), float, size)
    z_low, z_high, variation = _bracket_multipliers(multipliers, density / _widening(rates, multipliers, counts))
    few = len(set(rates.tolist())) <= EXACT
    q_low, q_high, rate = (rates, rates, np.zeros(size)) if few else _bracket_rates(rates)
    corners = np.stack([q_low, q_high, z_low, z_high], axis=1)
    cells, member = np.unique(corners, axis=0, return_inverse=True)
    order = np.argsort(member, kind="stable")
    starts = np.searchsorted(member[order], np.arange(len(cells) + 1))
    result = []
    for k, (low_rate, high_rate, low, high) in enumerate(cells.tolist()):
        inside = order[starts[k] : starts[k + 1]]
        lower, higher = ((low_rate, high, ()), (low_rate, low, ())), ((high_rate, high, ()), (high_rate, low, ()))
        result.append(Cell((*lower, *higher), rate[inside], variation[inside], counts[inside]))
    return result


def _widening(rates: Array, z: Array, counts: Array) -> Array:
    """How many times further apart the nodes around each z may be: a power of 2, and 1 unless steps like it hardly matter.

    The excess of ε grows with the square of the distance, and with the part of μ² that the steps within a factor 2 of z make up.
    """
    octave = np.floor(np.log2(z)).astype(np.int64)
    octave -= octave.min()
    spread = counts * rates**2 * np.expm1(np.minimum(z**-2.0, 500.0))
    parts = np.bincount(octave, spread)
    share = np.maximum(parts / parts.max(), _WIDEST**-2.0)
    return np.asarray(np.exp2(np.floor(-0.5 * np.log2(share)))[octave])


def _bracket_multipliers(z: Array, density: Array) -> tuple[Array, Array, Array]:
    """The nodes below and above each z on a fixed logarithmic grid, and the weight of the lower one."""
    region = np.searchsorted(_BORDERS, z, side="right")
    distance, anchor = _DISTANCES[region] / density, _ANCHORS[region]
    position = np.floor(np.log(z / anchor) / distance)
    low, high = anchor * np.exp(position * distance), anchor * np.exp((position + 1) * distance)
    low, high = np.minimum(low, z), np.maximum(high, z)  # rounding must not let a node slip inside
    # u = 1 − erfc(1/(2√2 z)); u falls as z grows.
    beyond_low, beyond, beyond_high = (erfc(1 / (2 * math.sqrt(2) * value)) for value in (low, z, high))
    span = beyond_high - beyond_low
    with np.errstate(divide="ignore", invalid="ignore"):
        weight = np.where(span > 0, (beyond_high - beyond) / span, 1.0)
    return low, high, np.clip(weight, 0.0, 1.0)


def _bracket_rates(q: Array) -> tuple[Array, Array, Array]:
    """The nodes below and above each q, and the weight of the higher one."""
    position = np.floor(np.log(q) / _RATE_DISTANCE)
    low = np.minimum(q, np.exp(position * _RATE_DISTANCE))
    high = np.maximum(q, np.minimum(1.0, np.exp((position + 1) * _RATE_DISTANCE)))
    with np.errstate(divide="ignore", invalid="ignore"):
        return low, high, np.where(high > low, (q - low) / (high - low), 0.0)
