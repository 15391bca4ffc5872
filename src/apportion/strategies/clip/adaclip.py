"""A scale of its own for each coordinate: gradients are clipped and noised where they are about equally wide everywhere."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from apportion.devices import with_float64
from apportion.errors import InvalidArgument
from apportion.releases import ClippedSum, Frame
from apportion.request import Released
from apportion.strategies.clip.groups import Grouped
from apportion.strategies.context import Context
from apportion.validate import below_one, checked, positive

if TYPE_CHECKING:
    from torch import Tensor

State = dict[str, dict[str, "Tensor"]]
"""The estimates "mean" and "variance" by parameter."""
_DECAY = "it is how much of the old estimate stays, and from 1 on the estimate would never move"


@dataclass(frozen=True)
class AdaClip(Grouped):
    """w_i = (g_i − m)/b is clipped to norm 1, summed and noised once for the batch: w̃. The answer is g̃ = b·w̃ + m.

    b_j = √s_j·√(Σ_l s_l), the sum over the coordinates of the group, adds the least noise Σ_j b_j² of all b with E‖w‖² ≤ 1, if s is the
    standard deviation of the gradients of single records. m and s² are moving averages of released values, which cost nothing:

        v  = B·((g̃ − m)² − b²·σ²/B²), brought into [floor, cap]      σ: noise on the sum of the w_i
        s² ← β₂·s² + (1 − β₂)·v
        m  ← β₁·m + (1 − β₁)·g̃

    They start at m = 0 and s² = √(floor·cap). Estimates are kept in float64, because v is a small difference of two numbers that are
    large beside it: the square of a noisy value and the variance of its noise.

    The gradients of single records have to be written out, one parameter at a time, so a step takes longer than with other clips.

    Args:
        floor, cap: bounds of the variance of one coordinate. The papers call them h₁ and h₂ and print them in both orders.
        mean_decay: β₁ in [0, 1).
        deviation_decay: β₂ in [0, 1).

    Source: Pichapati et al., AdaCliP: Adaptive Clipping for Private SGD. B in v is ours, for batches of more than one record. Adding
    noise to each record instead of once, as later comparisons do, leaves √B times as much.
    Guarantee: one record moves the sum of the w_i by at most 1, whatever m and b are.

    Examples:
        >>> from apportion.strategies import Context, clip
        >>> adaptive = clip.AdaClip(floor=1e-6, cap=1e-2)
        >>> first = Context(step=1, steps=100, sample_rate=0.1, parameter_shapes={"weight": (4,)})
        >>> [release] = adaptive.propose(adaptive.init(first), first)  # s² = 1e-4, so that b = √0.01·√(4·0.01)
        >>> release.threshold, release.frame.scale["weight"].numpy().round(6)
        (1.0, array([0.02, 0.02, 0.02, 0.02]))
    """

    floor: float = checked(1e-5, positive, "a scale of 0 cannot be divided by")
    cap: float = checked(1e-4, positive, "it bounds the noise of a coordinate")
    mean_decay: float = checked(0.9, below_one, _DECAY)
    deviation_decay: float = checked(0.99, below_one, _DECAY)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.floor > self.cap:
            raise InvalidArgument(
                "clip.floor",
                self.floor,
                f"it lies above cap={self.cap:g}, so that nothing could adapt (tables of the literature list h1 > h2: there h1 is "
                "the cap)",
                f"Swap them: floor={self.cap:g}, cap={self.floor:g}",
            )

    def init(self, context: Context) -> State:
        import torch

        first = math.sqrt(self.floor) * math.sqrt(self.cap)
        shapes = context.parameter_shapes
        return {
            "mean": {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()},
            "variance": {name: torch.full(shape, first, dtype=torch.float64) for name, shape in shapes.items()},
        }

    def propose(self, state: State, context: Context) -> tuple[ClippedSum, ...]:
        groups = [group.names or tuple(context.parameter_shapes) for group in self.split(context)]
        return tuple(
            replace(release, parameters=names, frame=_make_frame(state, names))
            for release, names in zip(self.clipped_sums(context, [1.0] * len(groups)), groups, strict=True)
        )

    def observe(self, state: State, released: Released) -> State:
        mean, variance = dict(state["mean"]), dict(state["variance"])
        size = released.request.expected_batch_size
        for release in released.request.sums:
            assert release.frame is not None  # as proposed above
            deviation = released.request.standard_deviation(release) / size
            for name, scale in release.frame.scale.items():
                answer = with_float64(released.gradient[name]).double()
                centre, spent, scale = (one.to(answer.device) for one in (state["mean"][name], variance[name], scale))
                spread = size * ((answer - centre).square() - (deviation * scale).square())
                variance[name] = _average(spent, spread.clamp(self.floor, self.cap), self.deviation_decay)
                mean[name] = _average(centre, answer, self.mean_decay)
        return {"mean": mean, "variance": variance}


def _make_frame(state: State, names: tuple[str, ...]) -> Frame:
    deviations = {name: state["variance"][name].sqrt() for name in names}
    root = math.sqrt(math.fsum(float(deviation.sum()) for deviation in deviations.values()))
    return Frame(
        {name: state["mean"][name] for name in names}, {name: root * s.sqrt() for name, s in deviations.items()}
    )


def _average(old: Tensor, new: Tensor, decay: float) -> Tensor:
    return decay * old + (1 - decay) * new
