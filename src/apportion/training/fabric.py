"""Models and optimisers that Lightning's `fabric.setup` has wrapped: what is inside them is trained.

The wrapper of a model casts inputs and outputs and lets a strategy meet gradients, which here the curator does alone. So one device in
one process, at full precision, is what remains of it; anything else is refused. Lightning itself is not imported.
"""

from __future__ import annotations

from typing import Any, TypeVar

from apportion.errors import InvalidArgument

Wrapped = TypeVar("Wrapped")
PRECISIONS = ("32-true", "64-true")


def without_fabric(value: Wrapped) -> Wrapped:
    """The module or optimiser that `fabric.setup` was given; anything else as it is."""
    kind = next((one for one in type(value).__mro__ if one.__name__ in ("_FabricModule", "_FabricOptimizer")), None)
    if kind is None or not kind.__module__.startswith("lightning"):
        return value
    wrapped: Any = value
    _require_plain(wrapped._strategy)
    inner: Wrapped = wrapped.module if kind.__name__ == "_FabricModule" else wrapped.optimizer
    return inner


def _require_plain(strategy: Any) -> None:
    """Refuse several processes or devices, and arithmetic in fewer bits than the weights have."""
    if not any(one.__name__ == "SingleDeviceStrategy" for one in type(strategy).__mro__):
        reason = "it combines the gradients of several processes before they are clipped, and each would claim the whole budget"
        raise InvalidArgument("fabric", type(strategy).__name__, reason, "Use Fabric(devices=1) in one process")
    if (precision := strategy.precision.precision) not in PRECISIONS:
        reason = "norms of gradients in fewer bits could exceed the threshold by more than the noise pays for"
        raise InvalidArgument("fabric", precision, reason, 'Use Fabric(devices=1, precision="32-true")')
