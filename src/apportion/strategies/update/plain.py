"""Any torch optimiser, fed with released gradients; and what is free beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from apportion.errors import InvalidArgument
from apportion.request import Released
from apportion.validate import Checked, checked, in_open_unit, instance_of

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Plain(Checked):
    """θ_t = optimiser(θ_{t−1}, g̃_t), where g̃_t is the released gradient, or g̃_t/C_t with `divide_by_clip`.

    The optimiser and its learning-rate scheduler are arguments of their own. DP-Adam is `torch.optim.Adam` used this way.

    **Averaging.** With β = `average` the run also keeps m_t = β·m_{t−1} + (1 − β)·θ_t from m_0 = 0, and offers
    θ̄_t = m_t/(1 − β^t), a mean of the weights so far in which the last 1/(1 − β) steps count most. It smooths the noise of single
    steps. Training goes on from θ_t as if there were no average.

    **Division.** Where most records are clipped, g̃_t is about as long as C_t, so a clip that adapts silently adapts the step
    too. Divided by C_t = √(Σ_k C_k²), over the groups k, the learning rate keeps its meaning.

    Args:
        average: β in (0, 1), for example 0.99; `None` keeps no average.
        divide_by_clip: whether the optimiser gets g̃_t/C_t.

    Source: averaging as in Polyak and Juditsky, Acceleration of stochastic approximation by averaging, with exponential weights and
    the bias correction of Adam; the division is ours.
    Guarantee: both are computed from released values alone, so they cost nothing.

    Examples:
        >>> import apportion as ap
        >>> ap.update.Plain(average=0.99)
        Plain(average=0.99, divide_by_clip=False)
    """

    prefix = "update"
    average: float | None = checked(
        None, in_open_unit, "0 keeps the last weights only and 1 never takes up new ones", "Try average=0.99"
    )
    divide_by_clip: bool = checked(False, instance_of(bool), "it is a choice", "Use true or false")

    def init(self, parameters: Mapping[str, Tensor]) -> Any:
        """The state before the first step: nothing, or no steps and m_0 = 0."""
        if self.average is None:
            return None
        return {"steps": 0, "sum": {name: value.detach() * 0 for name, value in parameters.items()}}

    def transform(self, state: Any, released: Released) -> Mapping[str, Tensor]:
        """g̃_t, or g̃_t/√(Σ_k C_k²)."""
        if not self.divide_by_clip:
            return released.gradient
        if any(release.frame is not None for release in released.request.sums):
            raise InvalidArgument(
                "update.divide_by_clip",
                True,
                "this clip scales each coordinate on its own and scales the answer back, so there is no threshold to divide by",
                "Leave it out",
            )
        threshold = math.hypot(*(release.threshold for release in released.request.sums))
        return {name: gradient / threshold for name, gradient in released.gradient.items()}

    def observe(self, state: Any, released: Released, parameters: Mapping[str, Tensor]) -> Any:
        """The state after a step that led to `parameters`."""
        if self.average is None:
            return None
        kept = self.average
        moved = {name: kept * state["sum"][name] + (1 - kept) * value.detach() for name, value in parameters.items()}
        return {"steps": state["steps"] + 1, "sum": moved}

    def averaged(self, state: Any) -> Mapping[str, Tensor] | None:
        """θ̄_t by parameter; `None` without an average or before the first step."""
        if self.average is None or not state["steps"]:
            return None
        weight = -math.expm1(state["steps"] * math.log(self.average))  # 1 − β^t, also for a β next to 1
        return {name: value / weight for name, value in state["sum"].items()}
