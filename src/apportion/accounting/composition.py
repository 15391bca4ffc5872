"""The loss of many steps: the distributions of independent losses convolve, so their Fourier transforms multiply.

All steps share one grid of width h. With F_t the transform of step t's loss, the sum of all losses has the transform
Π_t F_t = exp Σ_t ln F_t. Three things make this cheap and exact enough:

* **Tilting.** Masses are multiplied by e^{θℓ} and normalised before the transform and divided again afterwards. Rounding is then
  relative to the Chernoff bound of the tail that is asked for, instead of absolute: δ = 1e-20 can be resolved.
* **Few frequencies live.** |Π F_t| falls like a Gaussian; where a bound on it is below e^−42 it is zero for all purposes. A
  frequency that died stays dead, because |F_t| ≤ 1.
* **Cells.** Events between the same nodes share transforms: ln((1−w)F₀ + wF₁) = ln F₀ + ln(1 + w·r), r = F₁/F₀ − 1, whose sum over
  many w is a short power series in r with the power sums of w.

δ(ε) = Σ_{ℓ>ε} p(ℓ)(1 − e^{ε−ℓ}) + (mass at infinity) + (bound of what lies beyond the window) + (bound of rounding).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from apportion.accounting.grid import Direction, Grid
from apportion.accounting.interpolation import Cell, Node

Array = NDArray[np.float64]
Spectrum = NDArray[np.complex128]

_DEAD = -42.0  # ln of 6e-19: below the rounding of what is left
_WITNESSES = 12
_SERIES = 3  # events in a cell from which the power series is used: a logarithm costs as much as a dozen of its terms
_LOGARITHMS = 2_000_000  # taken at a time, where it is not: they are temporary, and stay within 32 MB
_BLOCK = 300  # in units of loss: e^−300 is still a normal number


class Composition:
    """The loss of all events added so far. Adding more does not start again."""

    def __init__(self, grid: Grid):
        self.steps = 0
        self._sides = [_Side(grid, direction) for direction in grid.directions]

    def add(self, cells: list[Cell]) -> None:
        """Convolve with the losses of the events in `cells`."""
        self.steps += round(sum(float(cell.counts.sum()) for cell in cells))
        for side in self._sides:
            side.add(cells)

    def curve(self) -> Curve:
        """δ(ε) of everything added so far."""
        return Curve(*(side.tail_sums(self.steps) for side in self._sides))


class _Side:
    """The running product in one orientation."""

    def __init__(self, grid: Grid, direction: Direction):
        self._grid, self._direction = grid, direction
        frequencies = grid.size // 2 + 1
        self._live = np.arange(frequencies)
        self._logs: Spectrum = np.zeros(frequencies, dtype=complex)
        self._bound = np.zeros(frequencies)
        self._normaliser = 0.0
        self._guard = 0.0
        self._infinite = 0.0

    def add(self, cells: list[Cell]) -> None:
        # Every factor is at most 1, so a few of them bound the product: enough to see which frequencies died.
        for cell in cells[:: max(1, len(cells) // _WITNESSES)]:
            magnitudes = [np.abs(self._spectrum(node)[0]) for node in set(cell.corners)]
            with np.errstate(divide="ignore"):
                self._bound += cell.counts.sum() * np.log(np.minimum(np.max(magnitudes, axis=0), 1.0))
        alive = self._bound > _DEAD
        self._live, self._logs, self._bound = self._live[alive], self._logs[alive], self._bound[alive]
        for cell in cells:
            self._add_cell(cell)

    def _spectrum(self, node: Node) -> tuple[Spectrum, float]:
        """The node's transform at the live frequencies."""
        spectrum, logarithm = self._grid.spectrum(node, self._direction, int(self._live[-1]) + 1)
        return spectrum[self._live], logarithm

    def _add_cell(self, cell: Cell) -> None:
        found = [self._spectrum(node) for node in cell.corners]
        base = max(logarithm for _, logarithm in found)
        corners = np.array([spectrum * math.exp(logarithm - base) for spectrum, logarithm in found])
        weights = cell.weights
        scale = np.log(weights @ np.array([math.exp(logarithm - base) for _, logarithm in found]))
        self._normaliser += float(cell.counts @ (base + scale))
        self._logs += _sum_of_logs(corners, cell, weights) - float(cell.counts @ scale)
        guards = np.array([self._grid.guard_moment(node, self._direction) for node in cell.corners])
        highest = float(guards.max())
        self._guard += float(cell.counts @ (highest + np.log(weights @ np.exp(guards - highest))))
        infinite = np.array([self._grid.infinite(node, self._direction) for node in cell.corners])
        self._infinite += float(cell.counts @ (weights @ infinite))

    def tail_sums(self, steps: int) -> TailSums:
        grid, direction = self._grid, self._direction
        spectrum = np.zeros(grid.size // 2 + 1, dtype=complex)
        spectrum[self._live] = np.exp(self._logs)
        tilted = np.maximum(np.roll(fft.irfft(spectrum, grid.size), -(direction.lowest % grid.size)), 0.0)
        index = direction.lowest + np.arange(grid.size)
        start = int(np.searchsorted(index, 1))
        losses: Array = index[start:].astype(np.float64) * grid.step
        exponents = self._normaliser - direction.theta * losses
        masses = tilted[start:] * np.exp(np.minimum(exponents, 700.0))
        top = (direction.lowest + grid.size - 1) * grid.step
        beyond = math.exp(min(0.0, self._guard - direction.guard * top))
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
    length = max(1, int(_BLOCK / step))
    carried = 0.0
    for stop in range(len(masses), 0, -length):
        start = max(0, stop - length)
        discounts = np.exp(-step * np.arange(stop - start))
        block = np.cumsum((masses[start:stop] * discounts)[::-1])[::-1] / discounts
        result[start:stop] = block + carried * math.exp(-step) * discounts[::-1]
        carried = float(result[start])
    return result


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
    block = max(1, _LOGARITHMS // max(1, corners.shape[1]))
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
