"""The noise role: the multiplier z_t of each step. It decides the price.

Every strategy here is a **schedule**: z_t = scale·relative(t) is known before any record is read, so ordinary exact
composition prices it. With `multiplier=None` the scale is solved from the budget, otherwise it is the given value.
All hyper-parameters of a shape are relative to the scale, so they mean the same in both cases.
"""

from __future__ import annotations

from apportion.strategies.noise.constant import Constant
from apportion.strategies.noise.decays import (
    ExponentialDecay,
    GeometricDecay,
    LinearDecay,
    PolynomialDecay,
    StepDecay,
    TimeDecay,
)
from apportion.strategies.noise.growing import GrowingMu
from apportion.strategies.noise.influence import InfluenceWeighted
from apportion.strategies.noise.privacy_utility import PrivacyUtility
from apportion.strategies.roles import NoiseSchedule

__all__ = [
    "Constant",
    "ExponentialDecay",
    "GeometricDecay",
    "GrowingMu",
    "InfluenceWeighted",
    "LinearDecay",
    "NoiseSchedule",
    "PolynomialDecay",
    "PrivacyUtility",
    "StepDecay",
    "TimeDecay",
]
