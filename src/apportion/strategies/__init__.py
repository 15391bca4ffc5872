"""What decides: clip, noise and their named combinations. Strategies see released values and public facts, nothing else.

A strategy is a frozen dataclass, its public hyper-parameters, with explicit state:

    state = strategy.init(context)
    part = strategy.propose(state, context)     # its part of the request
    state = strategy.observe(state, released)   # only what was released

No strategy has a path to a raw record, gradient, norm, loss or batch size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from apportion.lazy import lazy_names

if TYPE_CHECKING:
    from apportion.strategies import clip, noise, people, recipes, update
    from apportion.strategies.citations import cite
    from apportion.strategies.context import Context

__all__ = ["Context", "cite", "clip", "noise", "people", "recipes", "update"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "citations": ("cite",),
        "clip": (".",),
        "context": ("Context",),
        "noise": (".",),
        "people": (".",),
        "recipes": (".",),
        "update": (".",),
    },
)
