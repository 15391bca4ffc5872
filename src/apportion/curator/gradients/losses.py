"""From the outputs of a batch to one loss for each record, and what that loss may depend on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_flatten

from apportion.curator.tree import batch_size
from apportion.errors import UnsupportedModel

LossFunction = Callable[[Any, Any], Tensor]


def record_losses(loss_fn: LossFunction, outputs: Any, targets: Any, *, together: bool) -> Tensor:
    """The loss of every record alone, (b,). Alone, so that mean and sum are the same thing and nothing can be mixed.

    Args:
        together: under `vmap`; otherwise one after the other, for losses that have no batching rule.
    """

    leaves, structure = tree_flatten((outputs, targets))
    rows = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def alone(*record: Tensor) -> Tensor:
        batch_of_one = list(leaves)
        for index, tensor in zip(rows, record, strict=True):
            batch_of_one[index] = tensor.unsqueeze(0)
        return loss_fn(*structure.unflatten(batch_of_one)).sum()

    if together:
        losses: Tensor = vmap(alone, randomness="different")(*(leaves[index] for index in rows))
        return losses
    records = range(batch_size(outputs))
    return torch.stack([alone(*(leaves[index][i] for index in rows)) for i in records])


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
