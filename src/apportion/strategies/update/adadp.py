"""A learning rate that follows the local error: one step against two half steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from apportion.devices import with_float64
from apportion.errors import InvalidArgument
from apportion.request import Released
from apportion.validate import Checked, checked, positive, probability

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AdaDP(Checked):
    """θ ← θ_two if err ≤ τ, else θ stays; η ← η·clamp((τ/err)^a, α_min, α_max), always.

    A step takes two draws, each of a batch of its own and both charged:

        G₁ at θ:       θ_full = θ − η·G₁,  θ_half = θ − (η/2)·G₁
        G₂ at θ_half:  θ_two = θ_half − (η/2)·G₂
        err = √(Σ_j (|θ_full,j − θ_two,j| / max(1, |θ_full,j|))²)

    The difference estimates the local error against the gradient flow, and η is steered so that it stays near τ. A rejected step leaves
    the weights bit for bit as they were. A run that a filter ends between the two draws ends at θ_half.

    Args:
        tolerance: τ.
        exponent: a, ½ (of the authors' code, and right for a local error of second order) or 1 (as printed).
        least_factor, most_factor: α_min < 1 < α_max.
        least_rate, most_rate: bounds of η.

    Source: Koskela and Honkela, Learning Rate Adaptation for Differentially Private Learning, AISTATS 2020. Corrected: the trial updates
    are of θ, not of η; one error for all parameters.
    Guarantee: two Gaussians a step, declared in advance; accepting and steering is post-processing.

    Examples:
        >>> import apportion as ap
        >>> ap.update.AdaDP(tolerance=0.5).draws
        2
    """

    prefix = "update"
    tolerance: float = checked(1.0, positive, "errors are compared with it")
    exponent: float = checked(0.5, probability, "it says how fast η follows the error")
    least_factor: float = checked(0.9, positive, "it bounds how fast η falls")
    most_factor: float = checked(1.1, positive, "it bounds how fast η grows")
    least_rate: float = checked(1e-6, positive, "η must not vanish")
    most_rate: float = checked(100.0, positive, "η must not explode")

    draws = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.least_factor < 1 < self.most_factor:
            raise InvalidArgument(
                "update.least_factor",
                (self.least_factor, self.most_factor),
                "the factors must enclose 1, or η could only fall or only grow",
                "Try least_factor=0.9 and most_factor=1.1",
            )
        if not self.least_rate < self.most_rate:
            raise InvalidArgument(
                "update.least_rate", self.least_rate, f"it is not below most_rate={self.most_rate:g}", "Swap them"
            )

    def init(self, parameters: Mapping[str, Tensor], learning_rate: float) -> dict[str, Any]:
        """η, and no half step."""
        return {"rate": min(max(learning_rate, self.least_rate), self.most_rate), "start": None, "gradient": None}

    def learning_rate(self, state: Any) -> float:
        return float(state["rate"])

    def move(
        self, state: Any, released: Released, parameters: Mapping[str, Tensor]
    ) -> tuple[Any, Mapping[str, Tensor] | None]:
        """Half a step; at the second draw the other half, or back to the start."""
        rate, gradient = state["rate"], released.gradient
        half = {name: value - rate / 2 * gradient[name] for name, value in parameters.items()}
        if state["start"] is None:
            start = {name: value.clone() for name, value in parameters.items()}
            return {"rate": rate, "start": start, "gradient": dict(gradient)}, half
        full = {name: value - rate * state["gradient"][name] for name, value in state["start"].items()}
        error = _difference(full, half)
        accepted = error <= self.tolerance  # NaN and ∞ are not
        following = {"rate": self._next_rate(rate, error), "start": None, "gradient": None}
        return following, half if accepted else state["start"]

    def _next_rate(self, rate: float, error: float) -> float:
        if not math.isfinite(error):
            factor = self.least_factor
        else:
            wanted = math.inf if error == 0 else (self.tolerance / error) ** self.exponent
            factor = min(max(wanted, self.least_factor), self.most_factor)
        return min(max(rate * factor, self.least_rate), self.most_rate)


def _difference(full: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> float:
    """err, in float64."""
    pairs = [(with_float64(value).double(), with_float64(two[name]).double()) for name, value in full.items()]
    total = sum(float(((one - other) / one.abs().clamp(min=1.0)).square().sum()) for one, other in pairs)
    return math.sqrt(total) if math.isfinite(total) else math.nan
