"""The mean of the weights over the last part of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from apportion.request import Released
from apportion.strategies.context import Context
from apportion.validate import Checked, checked, probability

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TailAverage(Checked):
    """θ̄ = (θ_{T−n+1} + … + θ_T)/n over the last n = max(1, round(f·T)) of T steps.

    Until they begin there is no average. Training goes on from θ_t as if there were none. `Plain(average=β)` is the other kind, with
    weights that fall exponentially into the past: it forgets the beginning sooner and takes part of the noise of the last steps in turn.
    T is the number of steps of the plan; a run that a filter or a person ends before averages what it has of the last n.

    Args:
        fraction: f in (0, 1], the part of the steps that is averaged; 1 is Polyak-Ruppert averaging of all.

    Source: Rakhlin, Shamir and Sridharan, Making Gradient Descent Optimal for Strongly Convex Stochastic Optimization, ICML 2012
    (suffix averaging), after Polyak and Juditsky, Acceleration of Stochastic Approximation by Averaging, 1992.
    Guarantee: computed from weights that are released already, so it costs nothing.

    Examples:
        >>> import apportion as ap
        >>> from apportion.strategies import Context
        >>> last = ap.update.TailAverage(fraction=0.25)
        >>> last.begin(last.init({}), Context(step=1, steps=100, sample_rate=0.1))["waits"]
        75
    """

    prefix = "update"
    fraction: float = checked(0.5, probability, "it is a part of the steps")

    def init(self, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
        """Nothing averaged, and nothing to wait for yet."""
        return {"waits": 0, "steps": 0, "mean": {}}

    def begin(self, state: Any, context: Context) -> dict[str, Any]:
        """How many steps pass before the average begins."""
        return {**state, "waits": context.steps - max(1, round(self.fraction * context.steps))}

    def transform(self, state: Any, released: Released) -> Mapping[str, Tensor]:
        """g̃_t as it is."""
        return released.gradient

    def observe(self, state: Any, released: Released, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
        """One step less to wait for, or one more in the mean."""
        if state["waits"]:
            return {**state, "waits": state["waits"] - 1}
        steps, mean = state["steps"] + 1, state["mean"]
        values = {name: value.detach() for name, value in parameters.items()}
        if steps == 1:
            return {**state, "steps": 1, "mean": {name: value.clone() for name, value in values.items()}}
        return {
            **state,
            "steps": steps,
            "mean": {name: mean[name] + (value - mean[name]) / steps for name, value in values.items()},
        }

    def averaged(self, state: Any) -> Mapping[str, Tensor] | None:
        """θ̄ so far, by parameter; `None` before it begins."""
        return state["mean"] if state["steps"] else None
