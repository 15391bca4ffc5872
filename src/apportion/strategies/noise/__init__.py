"""The noise role: the multiplier z_t of each step. It decides the price.

Most strategies here are **schedules**: z_t = scale·relative(t) is known before any record is read, so ordinary exact
composition prices it. With `multiplier=None` the scale is solved from the budget, otherwise it is the given value.
All hyper-parameters of a shape are relative to the scale, so they mean the same in both cases.

`Validation` and `AdaptivePrivacyUtility` follow what was released: the first spends declared tokens, the second is held by a filter.
"""

from __future__ import annotations

from apportion.strategies.noise.adaptive_privacy_utility import AdaptivePrivacyUtility
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
from apportion.strategies.noise.validation import Validation
from apportion.strategies.roles import FeedbackNoise, MultisetNoise, NoiseSchedule, ValidatedNoise

__all__ = [
    "AdaptivePrivacyUtility",
    "Constant",
    "ExponentialDecay",
    "FeedbackNoise",
    "GeometricDecay",
    "GrowingMu",
    "InfluenceWeighted",
    "LinearDecay",
    "MultisetNoise",
    "NoiseSchedule",
    "PolynomialDecay",
    "PrivacyUtility",
    "StepDecay",
    "TimeDecay",
    "ValidatedNoise",
    "Validation",
]
