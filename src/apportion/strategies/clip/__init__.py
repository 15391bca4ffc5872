"""The clip role: how far one record may move the sum. It moves thresholds, never multipliers, so a step costs the same.

Some clips release a statistic of the norms beside the gradient. Both divide the multiplier of the step, so that the price is still
that of one release; it is the gradient that gets a little more noise.

`propose` returns the releases of a request; `observe` may use what was released to choose the next thresholds.
"""

from __future__ import annotations

from apportion.strategies.clip.adaclip import AdaClip
from apportion.strategies.clip.automatic import Automatic
from apportion.strategies.clip.decay import Decay
from apportion.strategies.clip.fixed import Fixed
from apportion.strategies.clip.histogram import LeastError, NormPercentile
from apportion.strategies.clip.norm_based import NormBased
from apportion.strategies.clip.quantile import Quantile
from apportion.strategies.clip.ramp import FixedDeviation, LinearDecay
from apportion.strategies.clip.sensitivity_decay import SensitivityDecay
from apportion.strategies.clip.sequence import Sequence
from apportion.strategies.roles import Clip

__all__ = [
    "AdaClip",
    "Automatic",
    "Clip",
    "Decay",
    "Fixed",
    "FixedDeviation",
    "LeastError",
    "LinearDecay",
    "NormBased",
    "NormPercentile",
    "Quantile",
    "SensitivityDecay",
    "Sequence",
]
