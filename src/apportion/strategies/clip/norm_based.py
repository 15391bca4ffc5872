"""A threshold in proportion to the mean gradient norm, as far as that is released."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from apportion import validate
from apportion.errors import InvalidArgument
from apportion.request import NormSum, Release, Released
from apportion.strategies.clip.adaptive import Adaptive
from apportion.strategies.context import Context


@dataclass(frozen=True)
class NormBased(Adaptive):
    """C_t = α·Ñ_{t−1}, where Ñ is the noisy mean of min(‖g_i‖, c) and c_t = β·C_{t−1}; for each group of parameters.

    Ñ_t = (Σ_i min(‖g_i‖, c_t) + N(0, (σ_n·c_t)²))/B is released with the gradient of the same batch and used for the next one. All K
    of them together use a share r of the step's budget: σ_n = z·√(K/r).

    Args:
        start: C₀ = C₁.
        proportion: α > 0. Thresholds as large as the norms or larger let much noise in, and noise makes the norms larger still.
        headroom: β. αβ must be more than 1: norms are cut at c, so otherwise a threshold that is once too small would never rise.
        share: r.

    Source: van der Veen et al., Three Tools for Practical Differential Privacy. Neither C₀ nor the division of the budget is printed
    there; those here are ours.
    Guarantee: one record moves a sum of norms by at most c_t, and gradient and norms together have the multiplier z.
    """

    proportion: float = 0.5
    headroom: float = 4.0
    share: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        part, cut, divided = "it scales the mean norm", "norms are cut there", "gradient and norms divide one budget"
        validate.store(
            self,
            proportion=validate.positive("clip.proportion", self.proportion, part, "Try proportion=0.5"),
            headroom=validate.positive("clip.headroom", self.headroom, cut, "Try headroom=4.0"),
            share=validate.in_open_unit("clip.share", self.share, divided, "Try share=0.05"),
        )
        if self.proportion * self.headroom <= 1:
            raise InvalidArgument(
                "clip.headroom",
                self.headroom,
                f"with proportion={self.proportion:g} their product is not above 1, so the threshold could fall and never rise",
                f"Use more than {1 / self.proportion:.3g}",
            )

    def init(self, context: Context) -> dict[str, Any]:
        first = self.first_thresholds(context)
        return {"thresholds": first, "previous": first}

    def propose(self, state: dict[str, Any], context: Context) -> tuple[Release, ...]:
        sums = self.clipped_sums(context, state["thresholds"], share=1 - self.share)
        norms = (
            NormSum(self.headroom * previous, one.parameters, self.share / len(sums))
            for one, previous in zip(sums, state["previous"], strict=True)
        )
        return (*sums, *norms)

    def observe(self, state: dict[str, Any], released: Released) -> dict[str, Any]:
        means = released.statistics  # below 0 if the noise says so, which the bounds put right
        return {
            "thresholds": tuple(self.bounded(self.proportion * mean) for mean in means),
            "previous": state["thresholds"],
        }
