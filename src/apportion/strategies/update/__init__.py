"""The update role: what is done with a released gradient. It reads nothing else, so it costs nothing."""

from __future__ import annotations

from apportion.strategies.update.plain import Plain

__all__ = ["Plain"]
