"""The loss of many steps: the distributions of independent losses convolve, so their Fourier transforms multiply.

All steps share one grid of width h. With F_t the transform of step t's loss, the sum of all losses has the transform
Π_t F_t = exp Σ_t ln F_t. Three things make this cheap and exact enough:

* **Tilting.** Masses are multiplied by e^{θℓ} and normalised before the transform and divided again afterwards. Rounding is then
  relative to the Chernoff bound of the tail that is asked for, instead of absolute: δ = 1e-20 can be resolved.
* **Few frequencies live.** |Π F_t| falls like a Gaussian; where a bound on it is below e^−55 it is zero for all purposes. A
  frequency that died stays dead, because |F_t| ≤ 1.
* **Cells.** Events between the same nodes share transforms: ln((1−w)F₀ + wF₁) = ln F₀ + ln(1 + w·r), r = F₁/F₀ − 1, whose sum over
  many w is a short power series in r with the power sums of w.

δ(ε) = Σ_{ℓ>ε} p(ℓ)(1 − e^{ε−ℓ}) + (mass at infinity) + (bound of what lies beyond the window) + (bound of rounding).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.special import logsumexp

from apportion.accounting.interpolation import EXACT, Cell, Node, cells_of
from apportion.accounting.loss import Sketch, StepLoss, discretise, sketch
from apportion.request import Event

Array = NDArray[np.float64]
Spectrum = NDArray[np.complex128]

_KAPPA = 0.05  # cells per standard deviation of a step's loss: the error of ε is about κ²/12
_WIDEST = 1e-2
_STEEPEST = 0.25  # θ·h: a coarser grid would blur a tail that steep
_DEAD = -55.0
_TAIL = 1e-5  # of δ: what the window and the cut of single steps may cost together, each
_SKETCHES = 32
_SERIES = 24  # events in a cell from which the power series is used
_THETAS = np.concatenate([[0.1, 0.25, 0.5], np.geomspace(1, 1e6, 48)])
_LARGEST = 1 << 21  # cells of a window; beyond that the grid is made coarser, which only raises δ


@dataclass
class _Direction:
    """One orientation on a grid: where the window begins, and how masses are tilted."""

    sign: int  # +1: removing a record, losses at +e; −1: adding one, losses at −e
    theta: float
    lowest: int  # index of the lowest loss in the window
    spectra: dict[Node, tuple[Spectrum, float]] = field(default_factory=dict)


class Grid:
    """The cells of the loss, the window and the tilt for plans of about a certain size, and the nodes computed on it.

    The window and the tilt are chosen from sketches. That is safe: what lies beyond the window is bounded for each composition by
    Chernoff's inequality at the tilt, P[L > w] ≤ E e^{θL}·e^{−θw}, with the exact moment of the discretised losses.
    """

    def __init__(
        self,
        events: Mapping[Event, int],
        delta: float,
        *,
        group: int = 1,
        exact: bool | None = None,
        room: float = 1.05,
    ):
        self.delta, self.group = delta, group
        self.exact = len(events) <= EXACT or group > 1 if exact is None else exact
        steps = sum(events.values())
        self.tail = max(_TAIL * delta / steps, 1e-300)
        self._losses: dict[Node, StepLoss] = {}
        sketches = self._sketches(self.cells(events))
        variance = sum(count * sketch.variance for sketch, count in sketches) / steps
        removing = self._window(sketches, 1, math.inf)
        self.step = min(_KAPPA * math.sqrt(variance), _WIDEST, _STEEPEST / removing[0])
        bounds = [self._window(sketches, sign, _STEEPEST / self.step) for sign in (1, -1)]
        widest = max(high - low for _, low, high in bounds)
        self.step = max(self.step, room * widest / _LARGEST)
        self.size = fft.next_fast_len(math.ceil(room * widest / self.step) + 16, real=True)
        self.directions = tuple(
            _Direction(sign, theta, math.floor(room * low / self.step) - 4)
            for sign, (theta, low, _) in zip((1, -1), bounds, strict=True)
        )

    def cells(self, events: Mapping[Event, int]) -> list[Cell]:
        return cells_of(events, exact=self.exact)

    def loss(self, node: Node) -> StepLoss:
        """The node's discretised loss."""
        if node not in self._losses:
            self._losses[node] = discretise(*node, self.step, self.tail, self.group)
        return self._losses[node]

    def spectrum(self, node: Node, direction: _Direction) -> tuple[Spectrum, float]:
        """The transform of the node's tilted, normalised masses, and the logarithm of the normaliser."""
        if node not in direction.spectra:
            losses, masses, _ = self._atoms(node, direction.sign)
            exponents = direction.theta * losses * self.step
            top = float(exponents.max())
            tilted = masses * np.exp(exponents - top)
            total = float(tilted.sum())
            folded = np.bincount(losses % self.size, weights=tilted / total, minlength=self.size)
            direction.spectra[node] = fft.rfft(folded), top + math.log(total)
        return direction.spectra[node]

    def infinite(self, node: Node, sign: int) -> float:
        return self._atoms(node, sign)[2]

    def _atoms(self, node: Node, sign: int) -> tuple[NDArray[np.int64], Array, float]:
        loss = self.loss(node)
        index = loss.first + np.arange(len(loss.removed))
        return (index, loss.removed, loss.removed_infinite) if sign > 0 else (-index, loss.added, loss.added_infinite)

    def _sketches(self, cells: list[Cell]) -> list[tuple[Sketch, float]]:
        """A few dozen sketches that stand for all nodes, each with the number of steps near it."""
        counts: dict[Node, float] = {}
        for cell in cells:
            for node, weight in zip(cell.corners, cell.counts @ _corner_weights(cell), strict=True):
                counts[node] = counts.get(node, 0.0) + float(weight)
        ordered = sorted(node for node, count in counts.items() if count > 0)
        size = max(1, math.ceil(len(ordered) / _SKETCHES))
        groups = [ordered[start : start + size] for start in range(0, len(ordered), size)]
        return [
            (sketch(*members[len(members) // 2], self.tail, self.group), sum(counts[node] for node in members))
            for members in groups
        ]

    def _window(self, sketches: list[tuple[Sketch, float]], sign: int, steepest: float) -> tuple[float, float, float]:
        """(θ, lowest, highest): the tilt for δ, and about the losses outside which less than the tail budget lies."""
        thetas = _THETAS[: max(1, int(np.searchsorted(_THETAS, steepest, side="right")))]

        def cumulants(slopes: Array) -> Array:
            total = np.zeros(len(slopes))
            for one, count in sketches:
                log_mass = one.log_p if sign > 0 else one.log_q
                total += count * logsumexp(np.outer(slopes, sign * one.losses) + log_mass, axis=1)
            return total

        up, down = cumulants(thetas), cumulants(-thetas)
        best = int(np.argmin((up - math.log(self.delta)) / thetas))
        budget = math.log(_TAIL * self.delta)
        # Beyond the window is bounded at the chosen tilt, so the window must be wide enough for that tilt.
        highest = float((up[best] - budget) / thetas[best])
        return float(thetas[best]), min(0.0, -float(np.min((down - budget) / thetas))), highest


class Composition:
    """The loss of all events added so far. Adding more does not start again."""

    def __init__(self, grid: Grid):
        self.grid = grid
        self.steps = 0
        self._sides = [_Side(grid, direction) for direction in grid.directions]

    def add(self, events: Mapping[Event, int]) -> None:
        """Convolve with the losses of `events`."""
        cells = self.grid.cells(events)
        self.steps += sum(events.values())
        for side in self._sides:
            side.add(cells)

    def curve(self) -> Curve:
        """δ(ε) of everything added so far."""
        return Curve(*(side.tail_sums(self.steps) for side in self._sides))


class _Side:
    """The running product in one orientation."""

    def __init__(self, grid: Grid, direction: _Direction):
        self._grid, self._direction = grid, direction
        frequencies = grid.size // 2 + 1
        self._live = np.arange(frequencies)
        self._logs: Spectrum = np.zeros(frequencies, dtype=complex)
        self._bound = np.zeros(frequencies)
        self._normaliser = 0.0
        self._infinite = 0.0

    def add(self, cells: list[Cell]) -> None:
        for cell in cells:
            magnitudes = [
                np.abs(self._grid.spectrum(node, self._direction)[0][self._live]) for node in set(cell.corners)
            ]
            with np.errstate(divide="ignore"):
                self._bound += cell.counts.sum() * np.log(np.minimum(np.max(magnitudes, axis=0), 1.0))
        alive = self._bound > _DEAD
        self._live, self._logs, self._bound = self._live[alive], self._logs[alive], self._bound[alive]
        for cell in cells:
            self._add_cell(cell)

    def _add_cell(self, cell: Cell) -> None:
        found = [self._grid.spectrum(node, self._direction) for node in cell.corners]
        base = max(logarithm for _, logarithm in found)
        corners = np.array([spectrum[self._live] * math.exp(logarithm - base) for spectrum, logarithm in found])
        weights = _corner_weights(cell)
        scale = np.log(weights @ np.array([math.exp(logarithm - base) for _, logarithm in found]))
        self._normaliser += float(cell.counts @ (base + scale))
        self._logs += _sum_of_logs(corners, cell, weights) - float(cell.counts @ scale)
        infinite = np.array([self._grid.infinite(node, self._direction.sign) for node in cell.corners])
        self._infinite += float(cell.counts @ (weights @ infinite))

    def tail_sums(self, steps: int) -> TailSums:
        grid, direction = self._grid, self._direction
        spectrum = np.zeros(grid.size // 2 + 1, dtype=complex)
        spectrum[self._live] = np.exp(self._logs)
        tilted = np.maximum(np.roll(fft.irfft(spectrum, grid.size), -(direction.lowest % grid.size)), 0.0)
        index = direction.lowest + np.arange(grid.size)
        start = int(np.searchsorted(index, 1))
        losses = index[start:] * grid.step
        exponents = self._normaliser - direction.theta * losses
        masses = tilted[start:] * np.exp(np.minimum(exponents, 700.0))
        top = (direction.lowest + grid.size - 1) * grid.step
        beyond = math.exp(min(0.0, self._normaliser - direction.theta * top))
        rounding = steps * (4 + math.log2(grid.size)) * 2.0**-53 * math.sqrt(2 * len(self._live))
        return TailSums(
            losses=losses,
            mass=np.cumsum(masses[::-1])[::-1],
            other=_discounted(masses, grid.step),
            constant=self._infinite + beyond,
            beyond=beyond,
            rounding=rounding
            * np.exp(np.minimum(self._normaliser - direction.theta * np.concatenate([[0.0], losses]), 700.0)),
        )


@dataclass(frozen=True)
class TailSums:
    """A loss distribution above 0: A_i = Σ_{k≥i} p_k and B_i = Σ_{k≥i} p_k·e^{ℓ_i−ℓ_k}.

    For ℓ_{i−1} ≤ ε < ℓ_i: δ(ε) = A_i − e^{ε−ℓ_i}·B_i + slack.
    """

    losses: Array
    mass: Array
    other: Array
    constant: float
    beyond: float
    rounding: Array

    def delta(self, epsilon: float) -> float:
        i = int(np.searchsorted(self.losses, epsilon, side="right"))
        slack = self.constant + float(self.rounding[i])
        if i >= len(self.losses):
            return min(1.0, slack)
        return float(min(1.0, max(0.0, self.mass[i] - math.exp(epsilon - self.losses[i]) * self.other[i]) + slack))

    def epsilon(self, delta: float) -> float:
        """The smallest ε ≥ 0 with δ(ε) ≤ `delta`; ∞ if there is none on the grid."""
        points = np.concatenate([[0.0], self.losses])
        nearby = np.exp(points[:-1] - self.losses) * self.other
        at_points = np.concatenate([np.maximum(self.mass - nearby, 0.0), [0.0]]) + self.constant + self.rounding
        enough = np.flatnonzero(at_points <= delta)
        if not len(enough):
            return math.inf
        i = int(enough[0])
        if i == 0:
            return 0.0
        room = delta - self.constant - float(self.rounding[i - 1])
        if room <= 0 or self.other[i - 1] <= 0:
            return float(points[i])
        above = float(self.mass[i - 1]) - room
        solved = float(self.losses[i - 1]) + math.log(above / self.other[i - 1]) if above > 0 else points[i - 1]
        return float(min(max(solved, points[i - 1]), points[i]))


@dataclass(frozen=True)
class Curve:
    """δ(ε) in both orientations; the worse one counts."""

    removed: TailSums
    added: TailSums

    def delta(self, epsilon: float) -> float:
        return max(self.removed.delta(epsilon), self.added.delta(epsilon))

    @property
    def beyond(self) -> float:
        """The bound of what lies outside the window; it is a part of every δ."""
        return max(self.removed.beyond, self.added.beyond)

    def epsilon(self, delta: float) -> float:
        return max(self.removed.epsilon(delta), self.added.epsilon(delta))


def _discounted(masses: Array, step: float) -> Array:
    """B_i = p_i + e^{−h}·B_{i+1}, in blocks that neither overflow nor underflow."""
    result = np.empty(len(masses))
    length = max(1, int(300 / step))
    carried = 0.0
    for stop in range(len(masses), 0, -length):
        start = max(0, stop - length)
        discounts = np.exp(-step * np.arange(stop - start))
        block = np.cumsum((masses[start:stop] * discounts)[::-1])[::-1] / discounts
        result[start:stop] = block + carried * math.exp(-step) * discounts[::-1]
        carried = float(result[start])
    return result


def _corner_weights(cell: Cell) -> Array:
    """(events, 4): how much of each corner an event is."""
    q, w = cell.rate, cell.variation
    return np.stack([(1 - q) * (1 - w), (1 - q) * w, q * (1 - w), q * w], axis=1)


def _sum_of_logs(corners: Spectrum, cell: Cell, weights: Array) -> Spectrum:
    """Σ_t n_t·ln(Σ_c w_tc·F_c) at each live frequency."""
    if len(set(cell.corners)) == 1:
        same: Spectrum = float(cell.counts.sum()) * np.log(corners[0])
        return same
    one_rate = cell.corners[0] == cell.corners[2]
    if one_rate and len(cell.counts) >= _SERIES:
        series = _power_series(corners[1] / corners[0] - 1, cell.variation, cell.counts)
        if series is not None:
            series += float(cell.counts.sum()) * np.log(corners[0])
            return series
    total = np.zeros(corners.shape[1], dtype=complex)
    block = max(1, 2_000_000 // max(1, corners.shape[1]))
    for start in range(0, len(cell.counts), block):
        part = slice(start, start + block)
        total += cell.counts[part] @ np.log(weights[part] @ corners)
    return total


def _power_series(ratio: Spectrum, weights: Array, counts: Array) -> Spectrum | None:
    """Σ_t n_t·ln(1 + w_t·r) = Σ_j (−1)^{j+1} r^j/j·Σ_t n_t·w_t^j, or None where |r| is too large for it to converge soon."""
    largest = float(np.abs(ratio).max(initial=0.0))
    if largest == 0:
        return np.zeros(len(ratio), dtype=complex)
    if largest > 0.5:
        return None
    terms = math.ceil(math.log(1e-17) / math.log(largest))
    total = np.zeros(len(ratio), dtype=complex)
    powers, ratios = counts.copy(), np.ones(len(ratio), dtype=complex)
    for j in range(1, terms + 1):
        powers, ratios = powers * weights, ratios * ratio
        total += (-1) ** (j + 1) * float(powers.sum()) / j * ratios
    return total
