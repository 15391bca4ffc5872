"""The update role: what is made of released values. It uses nothing else, so it costs nothing beside what it asks for.

Those that transform gradients can be combined: `Chain((LowPass(), AdamW(), LearningRate(warm_up=0.05), TailAverage()))`.
"""

from __future__ import annotations

from apportion.strategies.roles import AskingUpdate, SteeringUpdate, Update
from apportion.strategies.update.adadp import AdaDP
from apportion.strategies.update.adamw import AdamW
from apportion.strategies.update.dp_agd import DPAGD
from apportion.strategies.update.learning_rate import LearningRate
from apportion.strategies.update.low_pass import LowPass
from apportion.strategies.update.noisy_btls import NoisyBTLS
from apportion.strategies.update.plain import Plain
from apportion.strategies.update.tail_average import TailAverage
from apportion.strategies.update.update_chain import Chain

__all__ = [
    "DPAGD",
    "AdaDP",
    "AdamW",
    "AskingUpdate",
    "Chain",
    "LearningRate",
    "LowPass",
    "NoisyBTLS",
    "Plain",
    "SteeringUpdate",
    "TailAverage",
    "Update",
]
