"""The update role: what is made of released values. It uses nothing else, so it costs nothing beside what it asks for."""

from __future__ import annotations

from apportion.strategies.roles import AskingUpdate, SteeringUpdate, Update
from apportion.strategies.update.adadp import AdaDP
from apportion.strategies.update.dp_agd import DPAGD
from apportion.strategies.update.noisy_btls import NoisyBTLS
from apportion.strategies.update.plain import Plain

__all__ = ["DPAGD", "AdaDP", "AskingUpdate", "NoisyBTLS", "Plain", "SteeringUpdate", "Update"]
