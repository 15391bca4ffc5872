"""A learning rate that warms up and decays, as a part of the plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from apportion.request import Released
from apportion.strategies.context import Context
from apportion.validate import Checked, below_one, checked, one_of

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LearningRate(Checked):
    """η_t = η·t/W for t ≤ W = round(w·T), then η·d(p) with p = (t − W − 1)/(T − W) from 0 to just below 1.

    d(p) is 1 ("constant"), 1 − p ("linear") or (1 + cos(π·p))/2 ("cosine"). No step has the learning rate 0: all of them are paid for. η is
    that of the optimiser, so that momentum, AdamW and parameter groups see a learning rate and not a longer gradient; a scheduler of
    one's own multiplies it as well. T is the number of steps of the plan, of which a filter may leave some out.

    Args:
        warm_up: w, the part of the steps in which the learning rate rises.
        decay: "constant", "linear" or "cosine".

    Source: the warm-up of Goyal et al., Accurate, Large Minibatch SGD, 2017; the cosine of Loshchilov and Hutter, SGDR, ICLR 2017.
    Guarantee: it follows the number of the step alone, so it costs nothing.

    Examples:
        >>> import apportion as ap
        >>> from apportion.strategies import Context
        >>> rising = ap.update.LearningRate(warm_up=0.4, decay="linear")
        >>> [rising.rate(Context(step, steps=5, sample_rate=0.1)) for step in (1, 2, 3)]
        [0.5, 1.0, 1.0]
    """

    prefix = "update"
    warm_up: float = checked(0.0, below_one, "it is a part of the steps", "Try warm_up=0.05")
    decay: str = checked("constant", one_of("constant", "linear", "cosine"), "there is no such decay")

    def rate(self, context: Context) -> float:
        """η_t/η."""
        rising = round(self.warm_up * context.steps)
        if context.step <= rising:
            return context.step / rising
        passed = (context.step - rising - 1) / (context.steps - rising)
        return {"constant": 1.0, "linear": 1 - passed, "cosine": (1 + math.cos(math.pi * passed)) / 2}[self.decay]

    def init(self, parameters: Mapping[str, Tensor]) -> None:
        """There is nothing to remember."""

    def transform(self, state: Any, released: Released) -> Mapping[str, Tensor]:
        """g̃_t as it is."""
        return released.gradient

    def observe(self, state: Any, released: Released, parameters: Mapping[str, Tensor]) -> None:
        """Likewise nothing."""
