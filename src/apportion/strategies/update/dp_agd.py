"""Step sizes by a noisy choice among candidates, and gradients that are averaged with new ones until a step helps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from apportion.devices import with_float64
from apportion.errors import InvalidArgument
from apportion.event import Choice, Event
from apportion.releases import Line, LowestLoss
from apportion.request import Released
from apportion.strategies.context import Context
from apportion.strategies.released_noise import average_gradients, noise_deviation
from apportion.strategies.roles import AskGradient, Question
from apportion.validate import Checked, checked, non_negative, one_of, positive, whole

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class DPAGD(Checked):
    """w ← w − α_j·d with j = argmin_j (Σ_i min(ℓ_i(w − α_j·d), C_obj) − X_j) over 0 = α_0 < … < α_m, where d = S/‖S‖ + λ·w.

    S is a released gradient. If α_0 = 0 wins, the direction is judged bad: the budget of a gradient grows from ρ to (1 + γ)·ρ, another
    gradient at the same weights is released for the difference, and S becomes their mean weighted by precision, whose noise is that of
    one release at (1 + γ)·ρ. Every gradient and every choice is a draw of its own, on a fresh batch.

    Args:
        loss_bound: C_obj; losses count at most so much.
        candidates: m + 1.
        growth: γ.
        selection: what a choice costs, in units of what a gradient costs at the start: ρ_choice = selection·ρ.
        retries: how often a gradient is improved before a new one is taken.
        shrink_every: after so many steps the largest step size becomes 1.1 times the largest that was chosen meanwhile.
        decay: λ.
        noise: "gumbel", which pays ε₀²/8 for a choice, or "exponential".

    The learning rate of the run is the largest step size.

    Source: Lee and Kifer, Concentrated Differentially Private Gradient Descent with Adaptive Per-Iteration Privacy Budget, KDD 2018.
    Corrected: growth is 1 + γ; the second gradient costs (1 + γ)·ρ − ρ; losses are bounded by clipping losses, not gradients; the noise of
    the choice is taken off (added, as in the public code, k candidates cost (k − 1)·ε₀); candidate 0 means no step.
    Guarantee: a filter (of zCDP without sampling, otherwise of Rényi orders) refuses what would exceed the budget.

    Examples:
        >>> import apportion as ap
        >>> ap.update.DPAGD(candidates=5).step_sizes(2.0)
        (0.0, 0.5, 1.0, 1.5, 2.0)
    """

    prefix = "update"
    loss_bound: float = checked(3.0, positive, "it bounds what one record can add to a summed loss")
    candidates: int = checked(20, whole, "0 and another step size are needed", least=2)
    growth: float = checked(0.1, positive, "a gradient must get more exact when a step fails")
    selection: float = checked(0.5, positive, "a choice needs a budget")
    retries: int = checked(5, whole, "it is a number of gradients")
    shrink_every: int = checked(10, whole, "it is a number of steps")
    decay: float = checked(0.0, non_negative, "it is a weight decay")
    noise: str = checked("gumbel", one_of("gumbel", "exponential"), "two kinds of noise are known for it")

    draws = 1

    def step_sizes(self, largest: float) -> tuple[float, ...]:
        """α_0..α_m, evenly spaced."""
        return tuple(largest * j / (self.candidates - 1) for j in range(self.candidates))

    def choice_epsilon(self, multiplier: float) -> float:
        """ε₀ whose ρ is `selection` times 1/(2z²): ε₀²/8 for Gumbel noise, about ε₀²/2 otherwise."""
        rho = self.selection / (2 * multiplier**2)
        return math.sqrt((8 if self.noise == "gumbel" else 2) * rho)

    def reference(self, events: Mapping[Event, int]) -> Mapping[Event, int]:
        """Every second draw is a choice."""
        if sum(events.values()) < 2:
            reason = "the weights move after two draws at the earliest, a gradient and a choice"
            raise InvalidArgument("steps", sum(events.values()), reason, "Use at least 2")
        typical: Counter[Event] = Counter()
        for event, count in events.items():
            choice = Choice(self.choice_epsilon(event.noise_multiplier), bounded_range=self.noise == "gumbel")
            typical[event] += math.ceil(count / 2)
            typical[Event(event.sample_rate, math.inf, (choice,))] += count // 2
        return +typical

    def init(self, parameters: Mapping[str, Tensor], learning_rate: float) -> dict[str, Any]:
        """No gradient yet."""
        return {
            "gradient": None,
            "precision": None,
            "direction": None,
            "budget": 1.0,
            "asked": 1.0,
            "tries": 0,
            "limit": learning_rate,
            "largest": learning_rate,
            "chosen": [],
            "last": learning_rate,
        }

    def learning_rate(self, state: Any) -> float:
        return float(state["last"])

    def ask(self, state: Any, context: Context) -> Question:
        """A gradient with 1/√(its part of the budget) of the noise, or which step along it is best."""
        if state["direction"] is None:
            return AskGradient(noise=1 / math.sqrt(state["asked"]))
        line = Line(state["direction"], self.step_sizes(state["largest"]))
        return LowestLoss(line, self.loss_bound, self.choice_epsilon(context.noise_multiplier), noise=self.noise)

    def move(
        self, state: Any, released: Released, parameters: Mapping[str, Tensor]
    ) -> tuple[Any, Mapping[str, Tensor] | None]:
        """Improve the direction, or step along it."""
        if state["direction"] is None:
            return self._turn(state, released, parameters), None
        index = released.selected[0]
        step_size = self.step_sizes(state["largest"])[index or 0]
        if step_size == 0:
            return self._retry(state), None
        weights = {name: value - step_size * state["direction"][name] for name, value in parameters.items()}
        return self._after_step(state, step_size), weights

    def _turn(self, state: Any, released: Released, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
        """The direction after one more gradient."""
        if state["gradient"] is None:
            gradient: dict[str, Tensor] = dict(released.gradient)
            precision = {name: deviation**-2 for name, deviation in noise_deviation(released).items()}
        else:
            gradient, precision = average_gradients(state["gradient"], state["precision"], released)
        norm = math.sqrt(math.fsum(float(with_float64(value).double().square().sum()) for value in gradient.values()))
        length = norm if 0 < norm < math.inf else math.inf  # a gradient without a direction leads nowhere
        direction = {name: value / length + self.decay * parameters[name] for name, value in gradient.items()}
        return {**state, "gradient": gradient, "precision": precision, "direction": direction}

    def _retry(self, state: Any) -> dict[str, Any]:
        """The budget grows; the next gradient is released for the difference, or anew after too many."""
        budget = (1 + self.growth) * state["budget"]
        if state["tries"] == self.retries:
            return {**state, **_FRESH, "budget": budget, "asked": budget}
        asked = budget - state["budget"]
        return {**state, "direction": None, "budget": budget, "asked": asked, "tries": state["tries"] + 1}

    def _after_step(self, state: Any, step_size: float) -> dict[str, Any]:
        chosen, largest = [*state["chosen"], step_size], state["largest"]
        if len(chosen) >= self.shrink_every:
            largest, chosen = min(1.1 * max(chosen), state["limit"]), []
        found = {"asked": state["budget"], "largest": largest, "chosen": chosen, "last": step_size}
        return {**state, **_FRESH, **found}


_FRESH: Mapping[str, Any] = {"gradient": None, "precision": None, "direction": None, "tries": 0}
