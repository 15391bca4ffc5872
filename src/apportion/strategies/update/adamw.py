"""Adam with decoupled weight decay on released gradients, and with the variance of the noise taken off its second moment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from apportion.request import Released
from apportion.strategies.released_noise import noise_deviation
from apportion.validate import Checked, below_one, checked, in_open_unit, instance_of, non_negative, positive

if TYPE_CHECKING:
    from torch import Tensor

_TINY = 1e-12
"""Keeps 0/0 away; there is noise in whatever is released, so it need not do more. Adam's own 1e-8 may be more than a short gradient."""


@dataclass(frozen=True)
class AdamW(Checked):
    """θ ← θ − η·(m̂/√v̂ + λ·θ), where m̂ and v̂ are moving averages of g̃ and g̃²; `corrected`: √max(v̂ − Φ̂, γ·Φ̂) in place of √v̂.

        m_t = β₁·m_{t−1} + (1 − β₁)·g̃_t,    m̂_t = m_t/(1 − β₁^t)
        v_t = β₂·v_{t−1} + (1 − β₂)·g̃_t²,   v̂_t = v_t/(1 − β₂^t)

    It takes the place of the optimiser: a run with it uses plain SGD, whose learning rate is η. Schedulers and parameter groups work.

    **Correction.** Noise of variance s_t² adds Φ̂_t to v̂_t, the same moving average of s_t². It is public, and mostly far larger than
    what it is added to, so that all coordinates are scaled alike: DP-Adam is then SGD with momentum. Without Φ̂ the scales are those of
    the gradient again; γ·Φ̂ keeps away from 0 what the noise made smaller than its own variance. A learning rate for one of the two does
    not suit the other.

    Args:
        decay: λ, the weight decay; it shrinks the weights themselves and is not divided by √v̂.
        first: β₁.
        second: β₂.
        corrected: whether the variance of the noise is taken off.
        floor: γ, a part of that variance; it has no effect otherwise.

    Source: Chooi et al., DP-AdamW (arXiv 2511.07843), on Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019; the
    correction is that of Tang et al., DP-AdamBC, AAAI 2024, for s_t = z·C/B. Ours: noise that changes from step to step or from
    coordinate to coordinate, and a floor in units of it (theirs is a number that has to be tuned for every B, C and z).
    Guarantee: all of it is computed from released values and public facts, so it costs nothing.

    Examples:
        >>> import apportion as ap
        >>> ap.update.AdamW(decay=0.1, corrected=True)
        AdamW(decay=0.1, first=0.9, second=0.999, corrected=True, floor=0.01)
    """

    prefix = "update"
    decay: float = checked(0.01, non_negative, "it is a weight decay")
    first: float = checked(0.9, below_one, "old gradients must fade")
    second: float = checked(0.999, in_open_unit, "it says how fast old squares fade")
    corrected: bool = checked(False, instance_of(bool), "it is a choice", "Use true or false")
    floor: float = checked(0.01, positive, "a step is divided by its root")

    optimizing = True

    def init(self, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
        """No moments yet; the weights, if they are to decay."""
        zeros = {name: value.detach() * 0 for name, value in parameters.items()}
        return {
            "steps": 0,
            "first": zeros,
            "second": zeros,
            "noise": dict.fromkeys(zeros, 0.0) if self.corrected else None,
            "weights": self._kept(parameters),
        }

    def transform(self, state: Any, released: Released) -> Mapping[str, Tensor]:
        """m̂/√v̂ + λ·θ."""
        moved = self._moved(state, released)
        first, second = (-math.expm1(moved["steps"] * math.log(beta)) if beta else 1.0 for beta in self._betas)
        directions = {}
        for name, mean in moved["first"].items():
            square = moved["second"][name] / second
            if self.corrected:
                noise = moved["noise"][name] / second
                square = (square - noise).clamp(min=self.floor * noise)
            directions[name] = (mean / first / (square.sqrt() + _TINY)).to(mean.dtype)  # a frame may have more digits
        if state["weights"] is None:
            return directions
        return {name: value + self.decay * state["weights"][name] for name, value in directions.items()}

    def observe(self, state: Any, released: Released, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
        """The moments with g̃_t, and the weights it led to."""
        return {**self._moved(state, released), "weights": self._kept(parameters)}

    @property
    def _betas(self) -> tuple[float, float]:
        return self.first, self.second

    def _moved(self, state: Any, released: Released) -> dict[str, Any]:
        """The moments after one more gradient."""
        gradient, (first, second) = released.gradient, self._betas
        noise = None
        if self.corrected:
            new = noise_deviation(released)
            noise = {name: second * old + (1 - second) * new[name] ** 2 for name, old in state["noise"].items()}
        return {
            "steps": state["steps"] + 1,
            "first": {name: first * old + (1 - first) * gradient[name] for name, old in state["first"].items()},
            "second": {
                name: second * old + (1 - second) * gradient[name].square() for name, old in state["second"].items()
            },
            "noise": noise,
        }

    def _kept(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        return {name: value.detach().clone() for name, value in parameters.items()} if self.decay else None
