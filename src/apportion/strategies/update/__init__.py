"""The update role: what the optimiser is given of a released gradient. It uses released values alone, so it costs nothing."""

from __future__ import annotations

from apportion.strategies.roles import Update
from apportion.strategies.update.plain import Plain

__all__ = ["Plain", "Update"]
