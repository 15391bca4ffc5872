"""From the outputs of a batch to one loss for each record, and what that loss may depend on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional
from torch.utils._pytree import tree_flatten

from apportion.curator.gradients.module_state import StatelessLoss
from apportion.curator.tree import batch_size
from apportion.errors import UnsupportedModel

LossFunction = Callable[[Any, Any], Tensor]


def record_losses(loss_fn: LossFunction, outputs: Any, targets: Any, *, together: bool) -> Tensor:
    """The loss of every record alone, (b,). Alone, so that mean and sum are the same thing and nothing can be mixed.

    Args:
        together: in one call, or under `vmap`; otherwise one after the other, for losses that have no batching rule.
    """
    direct = by_record(loss_fn) if together and isinstance(outputs, Tensor) and isinstance(targets, Tensor) else None
    if direct is not None:
        return direct(outputs, targets)
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


def by_record(loss_fn: LossFunction) -> LossFunction | None:
    """The same loss with one value for each record, in one call without `vmap`; `None` if it is not known how.

    It is followed like the model (`proof.py`), so that nothing rests on the word of a loss with the attribute `by_record`.
    """
    form = loss_fn.find(_form) if isinstance(loss_fn, StatelessLoss) else _form(loss_fn)
    return loss_fn if form == "its own" else form


def _form(loss: LossFunction) -> LossFunction | Literal["its own"] | None:
    """A loss with one value for each record in place of this one; "its own" if it is one itself, `None` if it is not known how."""
    if loss is functional.cross_entropy:
        return CrossEntropies()
    if getattr(loss, "by_record", False):
        return "its own"
    if type(loss) is not nn.CrossEntropyLoss or loss.weight is not None or "forward" in vars(loss):
        return None
    if any(value for name, value in vars(loss).items() if name.endswith("_hooks")):
        return None
    return CrossEntropies(loss.ignore_index, loss.label_smoothing, loss.reduction)


@dataclass(frozen=True)
class CrossEntropies:
    """torch's cross-entropy without weights of classes, of each record alone: the mean over its places that count, or their sum."""

    ignore_index: int = -100
    label_smoothing: float = 0.0
    reduction: str = "mean"

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        values = functional.cross_entropy(
            outputs,
            targets,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction="none",
        )
        total = values if values.dim() == 1 else values.flatten(1).sum(1)
        if self.reduction != "mean":
            return total
        if targets.is_floating_point():  # probabilities of classes: every place counts
            return total if values.dim() == 1 else total / (values.numel() // max(1, len(values)))
        counts = targets != self.ignore_index
        return total / (counts if values.dim() == 1 else counts.flatten(1).sum(1))


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
