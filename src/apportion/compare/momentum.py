"""The optimiser "sgd" with a momentum of one's own."""

from __future__ import annotations

from functools import partial

from apportion.errors import InvalidArgument
from apportion.training.optimizers import OptimizerFactory


def with_momentum(optimizer: str, momentum: float) -> str | OptimizerFactory:
    """v_t = μ·v_{t−1} + g̃_t, θ_t = θ_{t−1} − η·v_t, for μ = `momentum`; with μ = 0 the optimiser as it is named."""
    require_sgd(optimizer, momentum)
    if not momentum:
        return optimizer
    import torch

    return partial(torch.optim.SGD, momentum=momentum)


def require_sgd(optimizer: str, momentum: float) -> None:
    """Refuse a momentum for an optimiser that has its own, or none."""
    if not 0 <= momentum < 1:
        raise InvalidArgument("momentum", momentum, "old gradients would never fade", "Use 0 ≤ momentum < 1")
    if momentum and optimizer != "sgd":
        raise InvalidArgument(
            "momentum", momentum, f"it belongs to the optimiser sgd, not to {optimizer}", 'Leave it out, or use "sgd"'
        )
