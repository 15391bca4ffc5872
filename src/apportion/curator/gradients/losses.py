"""From the outputs of a batch to one loss for each record, and what that loss may depend on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from apportion.curator.tree import batch_size, map_tensors
from apportion.errors import UnsupportedModel

LossFunction = Callable[[Any, Any], Tensor]


def record_losses(loss_fn: LossFunction, outputs: Any, targets: Any, *, together: bool) -> Tensor:
    """The loss of every record alone, (b,). Alone, so that mean and sum are the same thing and nothing can be mixed.

    Args:
        together: under `vmap`; otherwise one after the other, for losses that have no batching rule.
    """

    def alone(output: Any, target: Any) -> Tensor:
        batch_of_one = map_tensors(
            lambda leaf: leaf.unsqueeze(0) if isinstance(leaf, Tensor) else leaf, (output, target)
        )
        return loss_fn(*batch_of_one).sum()

    if together:
        losses: Tensor = vmap(alone, randomness="different")(outputs, targets)
        return losses
    records = range(batch_size(outputs))
    return torch.stack(
        [
            alone(*map_tensors(lambda leaf, i=i: leaf[i] if isinstance(leaf, Tensor) else leaf, (outputs, targets)))
            for i in records
        ]
    )


class ForeignParameter(UnsupportedModel):
    """A loss would leave a raw gradient outside the engine."""


def require_own_leaves(loss: Tensor, own: Iterable[Tensor]) -> None:
    """Refuse a loss that would leave a raw gradient in anything but `own`."""
    allowed = {id(value) for value in own}
    nodes: list[Any] = [loss.grad_fn]
    seen: set[Any] = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in allowed:
            raise ForeignParameter(
                f"the loss depends on a trainable tensor of shape {tuple(leaf.shape)} outside the model's parameters: it would "
                "get a gradient that is neither clipped nor noised. Make it a part of the model, or detach it"
            )
        nodes.extend(following for following, _ in node.next_functions)
