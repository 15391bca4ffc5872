"""A low-pass filter over the steps: gradients change slowly, noise does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from apportion.errors import InvalidArgument
from apportion.request import Released
from apportion.validate import Checked, at_least, checked, shown

if TYPE_CHECKING:
    from torch import Tensor

_TRIED = 1000
"""In so many steps a filter must not lose a constant gradient."""
_LIMIT = 1e6


def _coefficients(argument: str, value: Any, why: str, fix: str) -> tuple[float, ...]:
    """A rule: numbers."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InvalidArgument(argument, shown(value), f"a list of numbers is needed, because {why}", fix)
    return tuple(at_least(-_LIMIT)(f"{argument}[{index}]", one, why, fix) for index, one in enumerate(value))


@dataclass(frozen=True)
class LowPass(Checked):
    """ĝ_t = m_t/c_t with m_t = −Σ_τ a_τ·m_{t−τ} + Σ_τ b_τ·g̃_{t−τ}, where c_t is what the filter makes of the constant 1.

    The sums go over τ = 1..n_a and τ = 0..n_b; what lies before the first step is 0. Noise is the same at all frequencies, and gradients
    of consecutive steps are alike: what changes from step to step is mostly noise. The default is the filter of first order
    m_t = 0.9·m_{t−1} + 0.1·g̃_t, in which constant noise has 0.23 of its standard deviation. c_t corrects for the start at 0, as the
    bias correction of Adam does, and makes the filter pass on a constant gradient as it is.

    Args:
        a: a_1, a_2, …; with the signs of the formula.
        b: b_0, b_1, …; their scale has no effect.

    Source: Zhang X. et al., DOPPLER: Differentially Private Optimizers with Low-pass Filter for Privacy Noise Reduction, NeurIPS 2024. A
    published program counts b_1, b_2, … in c_t before there are gradients for them; here c_t is exact from the first step on.
    Guarantee: a function of released gradients, so it costs nothing.

    Examples:
        >>> import apportion as ap
        >>> [round(gain, 4) for gain in ap.update.LowPass(a=(-0.9,), b=(0.05, 0.05)).gains(3)]
        [0.05, 0.145, 0.2305]
    """

    prefix = "update"
    a: tuple[float, ...] = checked((-0.9,), _coefficients, "they say how much of the past is kept", "Try a=(-0.9,)")
    b: tuple[float, ...] = checked((0.1,), _coefficients, "they are the weights of gradients", "Try b=(0.1,)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self._is_stable() or not all(gain > 0 for gain in self.gains(_TRIED)):
            raise InvalidArgument(
                "update.a",
                (self.a, self.b),
                "with these a and b noise would grow without end, or a constant gradient vanish or change its sign",
                "Try a=(-0.9,) and b=(0.1,)",
            )

    def gains(self, steps: int) -> list[float]:
        """c_1, c_2, …: the answers to a gradient of 1 in every step."""
        gains: list[float] = []
        for step in range(1, steps + 1):
            gains.append(self._next(gains[: -len(self.a) - 1 : -1], [1.0] * min(step, len(self.b))))
        return gains

    def init(self, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
        """No past: earlier m, g̃ and c, the last ones first."""
        return {"filtered": [], "released": [], "gains": []}

    def transform(self, state: Any, released: Released) -> Mapping[str, Tensor]:
        """m_t/c_t."""
        filtered, gain = self._filter(state, released)
        return {name: value / gain for name, value in filtered.items()}

    def observe(self, state: Any, released: Released, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
        """The past with this step, as far back as the filter reaches."""
        filtered, gain = self._filter(state, released)
        kept, seen = len(self.a), len(self.b) - 1
        return {
            "filtered": [filtered, *state["filtered"]][:kept],
            "released": [dict(released.gradient), *state["released"]][:seen],
            "gains": [gain, *state["gains"]][:kept],
        }

    def _filter(self, state: Any, released: Released) -> tuple[dict[str, Tensor], float]:
        """m_t by parameter, and c_t."""
        gradients = [released.gradient, *state["released"]]
        filtered = {
            name: self._next([one[name] for one in state["filtered"]], [one[name] for one in gradients])
            for name in released.gradient
        }
        return filtered, self._next(state["gains"], [1.0] * len(gradients))

    def _next(self, past: Sequence[Any], inputs: Sequence[Any]) -> Any:
        """−Σ_τ a_τ·past_τ + Σ_τ b_τ·inputs_τ, for numbers or tensors, the last ones first."""
        kept = [-a * earlier for a, earlier in zip(self.a, past, strict=False)]
        return sum([b * one for b, one in zip(self.b, inputs, strict=False)] + kept)

    def _is_stable(self) -> bool:
        """Whether all poles lie inside the unit circle, so that noise of long ago fades."""
        import numpy as np

        return bool(np.all(np.abs(np.roots([1.0, *self.a])) < 1))
