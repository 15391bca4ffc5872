"""From the loss of a hand-written loop to the loss of single records.

A record's gradient must not depend on who else is in the batch, so a loss that was averaged over the batch has to be multiplied
by the batch's size again. How it was reduced is declared, and checked against what autograd saw: a mean that is called a sum, or
a mean over weights of the whole batch, would let one record rescale all others.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from apportion.errors import InvalidArgument, UnsupportedModel

Reduction = Literal["mean", "sum"]
_SAVED: dict[int, Reduction] = {1: "mean", 2: "sum"}  # how torch's loss nodes store their reduction


def per_record_scale(loss: Tensor, records: int, declared: Reduction) -> float:
    """The factor that makes `loss` the sum of the records' own losses: 1, or the number of records for a mean."""
    if loss.dim() == 1 and loss.shape[0] == records:
        return 1.0  # one value a record; (1,) for a batch of one is the same thing
    if loss.dim() != 0:
        raise UnsupportedModel(
            f"the loss has shape {tuple(loss.shape)}: it must be one number, or one number for each of the {records} records"
        )
    seen = _seen_reductions(loss)
    if seen and seen != {declared}:
        found = " and ".join(sorted(seen))
        raise InvalidArgument(
            "loss_reduction",
            declared,
            f"the loss was reduced by {found}, so records would be scaled by the size of their batch, which is private",
            f"Pass loss_reduction={min(seen)!r} to make_private, or use a loss with reduction='none'",
        )
    return float(records) if declared == "mean" else 1.0


def _seen_reductions(loss: Tensor) -> set[Reduction]:
    """The outermost reductions on the way from the loss to the model's outputs, as far as autograd names them."""
    found: set[Reduction] = set()
    nodes: list[Any] = [loss.grad_fn]
    visited: set[Any] = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        name = type(node).__name__
        if hasattr(node, "_saved_reduction") and node._saved_reduction in _SAVED:
            _refuse_batch_weights(node)
            found.add(_SAVED[node._saved_reduction])
        elif name.startswith("MeanBackward"):
            found.add("mean")
        elif name.startswith("SumBackward"):
            found.add("sum")
        else:
            nodes.extend(following for following, _ in node.next_functions)
    return found


def _refuse_batch_weights(node: Any) -> None:
    """A mean over class weights or over unmasked targets divides by a sum over the whole batch."""
    if node._saved_reduction != 1 or not hasattr(node, "_saved_total_weight"):
        return
    if node._saved_weight is not None or int(node._saved_total_weight) != node._saved_target.numel():
        raise UnsupportedModel(
            "the loss mixes records: a mean with class weights or ignored targets divides by a total over the batch. "
            "Use reduction='none' and average within each record."
        )
