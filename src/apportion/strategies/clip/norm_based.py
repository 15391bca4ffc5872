"""A threshold in proportion to the mean gradient norm, as far as that is released."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from apportion.errors import InvalidArgument
from apportion.releases import Noised, NormSum
from apportion.request import Released
from apportion.strategies.clip.adaptive import Adaptive
from apportion.strategies.context import Context
from apportion.validate import checked, in_open_unit, positive


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

    Examples:
        >>> from apportion.request import Released, Request
        >>> from apportion.strategies import Context, clip
        >>> adaptive, first = clip.NormBased(start=1.0, proportion=0.5), Context(step=1, steps=100, sample_rate=0.1)
        >>> state = adaptive.init(first)
        >>> releases = adaptive.propose(state, first)
        >>> [(type(release).__name__, release.share) for release in releases]
        [('ClippedSum', 0.95), ('NormSum', 0.05)]
        >>> adaptive.observe(state, Released(Request(0.1, 1.0, 100.0, releases), {}, statistics=(0.6,)))["thresholds"]
        (0.3,)
    """

    proportion: float = checked(0.5, positive, "it scales the mean norm")
    headroom: float = checked(4.0, positive, "norms are cut there")
    share: float = checked(0.05, in_open_unit, "gradient and norms divide one budget")

    def __post_init__(self) -> None:
        super().__post_init__()
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

    def propose(self, state: dict[str, Any], context: Context) -> tuple[Noised, ...]:
        sums = self.clipped_sums(context, state["thresholds"], share=1 - self.share)
        norms = (
            NormSum(self.headroom * previous, one.parameters, self.share / len(sums))
            for one, previous in zip(sums, state["previous"], strict=True)
        )
        return (*sums, *norms)

    def observe(self, state: dict[str, Any], released: Released) -> dict[str, Any]:
        means = released.statistics  # below 0 if the noise says so, which the bounds put right
        return {
            "thresholds": tuple(self.clamp(self.proportion * mean) for mean in means),
            "previous": state["thresholds"],
        }
