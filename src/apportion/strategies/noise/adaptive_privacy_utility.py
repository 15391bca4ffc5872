"""Noise in proportion to the gradient, as the last released gradient shows it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from apportion.errors import InvalidArgument
from apportion.request import Released
from apportion.strategies.context import Context
from apportion.strategies.noise.noise_schedule import MULTIPLIER
from apportion.strategies.released_noise import noise_power, signal_power
from apportion.validate import Checked, checked, positive


@dataclass(frozen=True)
class AdaptivePrivacyUtility(Checked):
    """σ_t = ‖∇F‖/√d on the mean gradient, with ‖∇F‖ from the gradient released at step t − 1; learning rate 1/(2M).

    It is the noise with the least privacy spent per expected decrease of an M-smooth loss F, if privacy costs 1/σ (`PrivacyUtility` has
    the derivation). As a multiplier, z_t = ‖∇F‖·B/(C·√d).

    **The norm.** ‖g̃‖² − d·σ² estimates ‖∇F‖² from what was released anyway. Where noise prevails its relative error is √(2/d), a few
    percent for a thousand parameters; a norm released beside the gradient, as published, would cost a share of the step and be less exact.

    Args:
        least, most: bounds of z_t in units of the reference multiplier. Near a minimum ‖∇F‖ is 0, and noise that followed it would spend
            everything at once.
        multiplier: the reference multiplier; `None`: the one of as many equal steps as were asked for.

    Source: Fay et al., Adaptive Hyperparameter Selection for Differentially Private Gradient Descent, TMLR 2023. Corrected: the norm is
    that of the step before, so that what prices a batch is fixed before it is drawn.
    Guarantee: a filter refuses what would exceed the budget; its ε is the promise, however noise moved.

    Examples:
        >>> from apportion.strategies import noise
        >>> noise.AdaptivePrivacyUtility(least=0.5)
        AdaptivePrivacyUtility(least=0.5, most=4.0, multiplier=None)
    """

    prefix = "noise"
    least: float = checked(0.5, positive, "noise must not vanish near a minimum")
    most: float = checked(4.0, positive, "steps must not be nothing but noise")
    multiplier: float | None = field(default=None, kw_only=True, metadata=MULTIPLIER)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least > self.most:
            raise InvalidArgument("noise.least", self.least, f"it is larger than most={self.most:g}", "Swap them")

    def init(self, context: Context) -> dict[str, float]:
        """r = 1, and the scale by which multipliers become r."""
        return {"relative": min(max(1.0, self.least), self.most), "scale": context.noise_multiplier}

    def choose(self, state: Any, context: Context) -> float:
        """r_t."""
        return float(state["relative"])

    def observe(self, state: Any, released: Released) -> Any:
        """z_{t+1} = z_t·‖∇F‖/E‖noise‖: with that the next noise is as long as the gradient."""
        if not released.request.noised:
            return state
        wanted = released.request.noise_multiplier * math.sqrt(signal_power(released) / noise_power(released))
        return {**state, "relative": min(max(wanted / state["scale"], self.least), self.most)}
