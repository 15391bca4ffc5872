"""Backtracking line search with noisy answers; budget and thresholds follow the angles between noisy gradients."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from apportion.devices import with_float64
from apportion.errors import InvalidArgument
from apportion.event import Choice, Event
from apportion.releases import FirstGain, Line
from apportion.request import Released
from apportion.strategies.context import Context
from apportion.strategies.released_noise import average_gradients, noise_deviation, signal_power
from apportion.strategies.roles import AskGradient, Question
from apportion.validate import Checked, checked, in_open_unit, positive, whole

if TYPE_CHECKING:
    from torch import Tensor

_SMALLEST_THRESHOLD = 0.01  # of the first one


@dataclass(frozen=True)
class NoisyBTLS(Checked):
    """w ← w − η·g̃ with the first η of η_max·β^i that passes f(w) − f(w − η·g̃) ≥ α·η·‖g‖² + noise (AboveThreshold).

    f is the mean of losses clipped to C_obj, g̃ a released gradient, and ‖g‖² = ‖g̃‖² − E‖noise‖² what it holds besides noise. If no η
    passes, a second gradient is released at the same weights. With φ the angle between the two and θ̄ the moving average of the
    angles between consecutive gradients:

        φ > far·θ̄    noise prevails in gradients: their budget grows by 1 + κ, and C and C_obj fall by 1 − ζ, once an update at most
        φ < near·θ̄   the search is too noisy: its budget grows by 1 + κ

    The search is repeated along the mean of both, weighted by precision. Every gradient and every search is a draw of its own.

    Args:
        loss_bound: C_obj at the start.
        slope: α.
        shrink: β.
        tries: how many η are tried in a search.
        growth: κ.
        memory: ψ of the moving average, θ̄ ← ψ·θ̄ + (1 − ψ)·angle.
        far, near: φ_max > 1 and φ_min < 1.
        lower: ζ.
        search: what a search costs, in units of what a gradient costs at the start: ρ_search = search·ρ.
        retries: second gradients in an update at most; then the weights stay.

    The learning rate of the run is η_max.

    Source: Chen and Lee, Stochastic Adaptive Line Search for Differentially Private Optimization, IEEE Big Data 2020. Corrected: the search
    uses the noisy gradient, angles are between consecutive noisy gradients, C_obj falls from C_obj and not from C.
    Guarantee: a search costs the same however many η fail; a filter refuses what would exceed the budget.

    Examples:
        >>> import apportion as ap
        >>> ap.update.NoisyBTLS(tries=3).step_sizes(4.0)
        (4.0, 2.0, 1.0)
    """

    prefix = "update"
    loss_bound: float = checked(2.0, positive, "it bounds what one record can add to a summed loss")
    slope: float = checked(0.1, in_open_unit, "it is a part of the decrease that a straight line would have")
    shrink: float = checked(0.5, in_open_unit, "step sizes must fall")
    tries: int = checked(8, whole, "it is a number of step sizes")
    growth: float = checked(0.2, positive, "budgets grow by it")
    memory: float = checked(0.9, in_open_unit, "it is the weight of the past")
    far: float = checked(1.05, positive, "it is a factor of the usual angle")
    near: float = checked(0.95, positive, "it is a factor of the usual angle")
    lower: float = checked(0.05, in_open_unit, "thresholds fall by it")
    search: float = checked(1.0, positive, "a search needs a budget")
    retries: int = checked(2, whole, "it is a number of gradients", least=0)

    draws = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.near < 1 < self.far:
            raise InvalidArgument(
                "update.near",
                (self.near, self.far),
                "near and far must enclose 1, the usual angle itself",
                "Try near=0.95 and far=1.05",
            )

    def step_sizes(self, largest: float) -> tuple[float, ...]:
        """η_max·β^i."""
        return tuple(largest * self.shrink**i for i in range(self.tries))

    def search_epsilon(self, multiplier: float, budget: float = 1.0) -> float:
        """ε of a search whose ρ, about ε²/2, is `search` times 1/(2z²) times what the budget has grown by."""
        return math.sqrt(self.search * budget) / multiplier

    def reference(self, events: Mapping[Event, int]) -> Mapping[Event, int]:
        """Every second draw is a search."""
        if sum(events.values()) < 2:
            reason = "the weights move after two draws at the earliest, a gradient and a search"
            raise InvalidArgument("steps", sum(events.values()), reason, "Use at least 2")
        typical: Counter[Event] = Counter()
        for event, count in events.items():
            typical[event] += math.ceil(count / 2)
            choice = Choice(self.search_epsilon(event.noise_multiplier))
            typical[Event(event.sample_rate, math.inf, (choice,))] += count // 2
        return +typical

    def init(self, parameters: Mapping[str, Tensor], learning_rate: float) -> dict[str, Any]:
        """No gradient yet, and a right angle, as between noise and noise."""
        return {
            "gradient": None,
            "precision": None,
            "power": 0.0,
            "searching": False,
            "previous": None,
            "angle": math.pi / 2,
            "gradient_budget": 1.0,
            "search_budget": 1.0,
            "threshold": 1.0,
            "lowered": False,
            "seconds": 0,
            "largest": learning_rate,
            "last": 0.0,
        }

    def learning_rate(self, state: Any) -> float:
        return float(state["last"])

    def ask(self, state: Any, context: Context) -> Question:
        """A gradient, or how far to go along it."""
        if not state["searching"]:
            return AskGradient(noise=1 / math.sqrt(state["gradient_budget"]), threshold=state["threshold"])
        return FirstGain(
            Line(state["gradient"], self.step_sizes(state["largest"])),
            self.loss_bound * state["threshold"],
            self.search_epsilon(context.noise_multiplier, state["search_budget"]),
            slope=self.slope * state["power"],
        )

    def move(
        self, state: Any, released: Released, parameters: Mapping[str, Tensor]
    ) -> tuple[Any, Mapping[str, Tensor] | None]:
        """Take up a gradient, or step as far as the search says."""
        if not state["searching"]:
            return (self._first(state, released) if state["gradient"] is None else self._second(state, released)), None
        index = released.selected[0]
        if index is None and state["seconds"] < self.retries:
            return {**state, "searching": False}, None
        step_size = 0.0 if index is None else self.step_sizes(state["largest"])[index]
        ended = {"gradient": None, "searching": False, "lowered": False, "seconds": 0, "last": step_size}
        following = {**state, **ended, "previous": state["gradient"]}
        if step_size == 0:
            return following, None
        return following, {name: value - step_size * state["gradient"][name] for name, value in parameters.items()}

    def _first(self, state: Any, released: Released) -> dict[str, Any]:
        """The gradient of a new update, and the moving average of angles."""
        gradient = dict(released.gradient)
        angle = state["angle"]
        if state["previous"] is not None:
            angle = self.memory * angle + (1 - self.memory) * angle_between(gradient, state["previous"])
        precision = {name: deviation**-2 for name, deviation in noise_deviation(released).items()}
        found = {"gradient": gradient, "precision": precision, "power": signal_power(released), "angle": angle}
        return {**state, **found, "searching": True}

    def _second(self, state: Any, released: Released) -> dict[str, Any]:
        """What a second gradient at the same weights says about the noise."""
        angle, changed = angle_between(state["gradient"], released.gradient), dict[str, Any]()
        if angle > self.far * state["angle"]:
            changed["gradient_budget"] = (1 + self.growth) * state["gradient_budget"]
            if not state["lowered"]:
                changed["threshold"] = max((1 - self.lower) * state["threshold"], _SMALLEST_THRESHOLD)
                changed["lowered"] = True
        elif angle < self.near * state["angle"]:
            changed["search_budget"] = (1 + self.growth) * state["search_budget"]
        gradient, precision = average_gradients(state["gradient"], state["precision"], released)
        power = (state["power"] + signal_power(released)) / 2
        found = {"gradient": gradient, "precision": precision, "power": power, "seconds": state["seconds"] + 1}
        return {**state, **changed, **found, "searching": True}


def angle_between(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """arccos of the cosine between two gradients; a right angle if one of them is zero."""
    products = [(with_float64(one[name]).double(), with_float64(other[name]).double()) for name in one]
    inner = math.fsum(float((a * b).sum()) for a, b in products)
    squares = [math.fsum(float(pair[side].square().sum()) for pair in products) for side in (0, 1)]
    length = math.sqrt(squares[0]) * math.sqrt(squares[1])
    if not 0 < length < math.inf:
        return math.pi / 2
    return math.acos(min(max(inner / length, -1.0), 1.0))
