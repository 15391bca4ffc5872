"""Where losses are put: the width of a cell, the window, the tilt, and the nodes that were computed on it.

Every composition on one grid can share nodes, so grids are taken from ladders (widths by √2, windows by 1.2, tilts by a third): plans
that differ a little, as in a calibration, fall on the same one, and the same plan always has the same price.

The window and the tilt are chosen from sketches. That is safe: what lies beyond the window is bounded for each composition by Chernoff's
inequality at the guard, P[L > w] ≤ E e^{γL}·e^{−γw}, with the exact moment of the discretised losses. The tilt θ is the gentlest that keeps
rounding below a ten-thousandth of δ: a steep one would magnify what wraps around the window's end.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from apportion.accounting.interpolation import EXACT, Cell, Node, cells_of
from apportion.accounting.loss import Sketch, StepLoss, discretise, sketch
from apportion.event import Event

Array = NDArray[np.float64]
Spectrum = NDArray[np.complex128]

TAIL = 1e-5
"""Of δ: what the window, and the cut of single steps, may cost each."""

_KAPPA = 0.06  # cells per standard deviation of a step's loss: the relative error of ε is about κ²/12
_WIDEST = 1e-2
_STEEPEST = 0.25  # θ·h: a coarser grid would blur a tail that steep
_THETAS = np.concatenate([[0.1, 0.25, 0.5], np.geomspace(1, 1e6, 48)])
_LARGEST = 1 << 21  # cells of a window; beyond that the grid is made coarser, which only raises δ
_SKETCHES = 32
_KEPT = 4096


@dataclass(frozen=True)
class Direction:
    """One orientation: where its window begins, and how masses are tilted.

    Args:
        sign: +1 for removing a record (losses at +e), −1 for adding one (losses at −e).
        theta: θ.
        guard: the slope at which what lies beyond the window is bounded; steeper than θ.
        lowest: index of the lowest loss in the window.
    """

    sign: Literal[1, -1]
    theta: float
    guard: float
    lowest: int


class Grid:
    """Cells of width `step`, `size` of them in a window, for both orientations."""

    def __init__(self, step: float, size: int, directions: tuple[Direction, Direction], tail: float, group: int):
        self.step, self.size, self.directions, self._tail, self._group = step, size, directions, tail, group
        self._losses: dict[Node, StepLoss] = {}
        self._spectra: dict[tuple[Node, int], tuple[Spectrum, float]] = {}
        self._guards: dict[tuple[Node, int], float] = {}

    def spectrum(self, node: Node, direction: Direction, upto: int) -> tuple[Spectrum, float]:
        """The first `upto` frequencies of the node's tilted, normalised masses, and the logarithm of the normaliser."""
        key = (node, direction.sign)
        known = self._spectra.get(key)
        if known is None or len(known[0]) < upto:
            losses, masses, _ = self._atoms(node, direction.sign)
            exponents = direction.theta * self.step * losses
            top = float(exponents.max())
            tilted = masses * np.exp(exponents - top)
            total = float(tilted.sum())
            folded = np.bincount(losses % self.size, weights=tilted / total, minlength=self.size)
            # Few frequencies survive many steps, so the high ones are kept only if they were asked for.
            self._spectra[key] = known = fft.rfft(folded)[: max(upto, _KEPT)].copy(), top + math.log(total)
        return known

    def guard_moment(self, node: Node, direction: Direction) -> float:
        """ln E e^{γL} of the node."""
        key = (node, direction.sign)
        if key not in self._guards:
            losses, masses, _ = self._atoms(node, direction.sign)
            exponents = direction.guard * self.step * losses
            top = float(exponents.max())
            self._guards[key] = top + math.log(float(masses @ np.exp(exponents - top)))
        return self._guards[key]

    def infinite(self, node: Node, direction: Direction) -> float:
        """The mass that discretisation moved to infinity."""
        return self._atoms(node, direction.sign)[2]

    def _atoms(self, node: Node, sign: int) -> tuple[NDArray[np.int64], Array, float]:
        if node not in self._losses:
            self._losses[node] = discretise(*node, self.step, self._tail, self._group)
        loss = self._losses[node]
        index = loss.first + np.arange(len(loss.removed))
        return (index, loss.removed, loss.removed_infinite) if sign > 0 else (-index, loss.added, loss.added_infinite)


def make_cells(events: Mapping[Event, int], delta: float, *, group: int = 1, exact: bool | None = None) -> list[Cell]:
    """The cells of `events`: interpolated only where there are many, and for single records, for which that is proved."""
    density = 2 ** max(0, math.ceil(math.log2(-math.log(delta) / 13.5)))  # measured: keeps the excess of ε near 0.1 %
    return cells_of(events, exact=len(events) <= EXACT or group > 1 if exact is None else exact, density=density)


def choose_grid(cells: list[Cell], delta: float, *, group: int = 1, room: float = 1.05) -> Grid:
    """A grid for compositions of about these cells, that resolves δ(ε) down to about `delta`.

    Args:
        room: how much wider than estimated the window is made.
    """
    steps = sum(float(cell.counts.sum()) for cell in cells)
    tail = 10.0 ** math.floor(math.log10(max(TAIL * delta / steps, 1e-300)))
    sketches = _sketches(cells, tail, group)
    variance = sum(count * one.variance for one, count in sketches) / steps
    moments = {sign: (_cumulants(sketches, sign, _THETAS), _cumulants(sketches, sign, -_THETAS)) for sign in (1, -1)}
    slack = min(12.0, max(2.0, 17.0 - math.log(steps)))
    theta = _window(*moments[1], delta, math.inf, slack)[0]
    step = 2 ** (math.floor(2 * math.log2(min(_KAPPA * math.sqrt(variance), _WIDEST, _STEEPEST / theta))) / 2)
    bounds = [_window(*moments[sign], delta, _STEEPEST / step, slack) for sign in (1, -1)]
    while room * max(high - low for _, _, low, high in bounds) / step > _LARGEST:
        step *= math.sqrt(2)
    directions = tuple(
        (sign, theta, guard, -_ladder(-room * low / step))
        for sign, (theta, guard, low, _) in zip((1, -1), bounds, strict=True)
    )
    highest = [_ladder(room * high / step) for *_, high in bounds]
    size = max(high - lowest for high, (*_, lowest) in zip(highest, directions, strict=True))
    return _grid(step, fft.next_fast_len(size + 16, real=True), directions, tail, group)


def _ladder(cells: float) -> int:
    """The next of the sizes 16, 20, 24, … that grow by a fifth."""
    return math.ceil(16 * 1.2 ** max(0, math.ceil(math.log(max(cells, 1) / 16, 1.2))))


@functools.lru_cache(maxsize=4)
def _grid(
    step: float, size: int, directions: tuple[tuple[int, float, float, int], ...], tail: float, group: int
) -> Grid:
    first, second = (
        Direction(1 if sign > 0 else -1, theta, guard, lowest) for sign, theta, guard, lowest in directions
    )
    return Grid(step, size, (first, second), tail, group)


def _sketches(cells: list[Cell], tail: float, group: int) -> list[tuple[Sketch, float]]:
    """A few dozen sketches that stand for all nodes, each with the number of steps near it."""
    counts: dict[Node, float] = {}
    for cell in cells:
        for node, weight in zip(cell.corners, cell.counts @ cell.weights, strict=True):
            counts[node] = counts.get(node, 0.0) + float(weight)
    ordered = sorted(node for node, count in counts.items() if count > 0)
    size = max(1, math.ceil(len(ordered) / _SKETCHES))
    groups = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    return [
        (sketch(*members[len(members) // 2], tail, group), sum(counts[node] for node in members)) for members in groups
    ]


def _cumulants(sketches: list[tuple[Sketch, float]], sign: int, slopes: Array) -> Array:
    """Σ_t ln E e^{θL_t} for each θ of `slopes`, from the sketches."""
    total = np.zeros(len(slopes))
    for one, count in sketches:
        exponents = np.outer(slopes, sign * one.losses) + (one.log_p if sign > 0 else one.log_q)
        top = exponents.max(axis=1)
        total += count * (top + np.log(np.exp(exponents - top[:, None]).sum(axis=1)))
    return total


def _window(up: Array, down: Array, delta: float, steepest: float, slack: float) -> tuple[float, float, float, float]:
    """(θ, γ, lowest, highest): tilt and guard for δ, and about the losses outside which less than the tail budget lies.

    Args:
        up, down: the cumulants at the slopes _THETAS and −_THETAS.
        steepest: no slope beyond this.
        slack: ln of how far above δ the Chernoff bound at the tilt may lie.
    """
    usable = max(1, int(np.searchsorted(_THETAS, steepest, side="right")))
    thetas, up, down = _THETAS[:usable], up[:usable], down[:usable]
    epsilon = float(np.min((up - math.log(delta)) / thetas))
    chosen = int(np.argmax(up - thetas * epsilon <= math.log(delta) + slack))
    budget = math.log(TAIL * delta)
    guard = max(chosen, int(np.argmin((up - budget) / thetas)))
    highest = float((up[guard] - budget) / thetas[guard])
    return float(thetas[chosen]), float(thetas[guard]), min(0.0, -float(np.min((down - budget) / thetas))), highest
