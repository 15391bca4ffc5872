"""From the loss of a hand-written loop to the loss of single records.

A record's gradient must not depend on who else is in the batch. The safest loss has one value for each record (reduction="none") and
is used as it is. A loss that is one number must be a mean or a sum over the batch, or a sum of such, and nothing may be done to it
afterwards: a mean is multiplied by the batch's size again, and a root, a logarithm or a division by a total would let one record
rescale all others. What autograd recorded is checked against this; where it shows nothing, the duty is the person's.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from apportion.errors import InvalidArgument, UnsupportedModel

Reduction = Literal["mean", "sum"]
_SAVED: dict[int, Reduction] = {1: "mean", 2: "sum"}  # how torch's loss nodes store their reduction
_HARMLESS = ("AddBackward", "SubBackward", "NegBackward", "AliasBackward")  # a sum of reduced losses is one
_REMEDY = "Use reduction='none', combine the terms of each record, and call backward on the vector of losses"


def per_record_scale(loss: Tensor, records: int, declared: Reduction) -> float:
    """The factor that makes `loss` the sum of the records' own losses: 1, or the number of records for a mean."""
    if loss.dim() == 1 and loss.shape[0] == records:
        return 1.0  # one value a record; (1,) for a batch of one is the same thing
    if loss.dim() != 0:
        raise UnsupportedModel(
            f"the loss has shape {tuple(loss.shape)}: it must be one number, or one number for each of the {records} records"
        )
    seen = _reductions(loss)
    if seen != {declared}:
        found = " and ".join(sorted(seen))
        raise InvalidArgument(
            "loss_reduction",
            declared,
            f"the loss was reduced by {found}, so records would be scaled by the size of their batch, which is private",
            _REMEDY if len(seen) > 1 else f"Pass loss_reduction={found!r} to make_private. Or: {_REMEDY}",
        )
    return float(records) if declared == "mean" else 1.0


def require_separable(loss: Tensor, outputs: list[Tensor]) -> None:
    """Refuse a loss in which one record's gradient depends on another record's output.

    For a sum of terms of single records the Hessian with respect to the outputs is block-diagonal: differentiating the first
    record's gradient once more must give zero for all others. Mixing that is linear, or hidden from autograd, is not found.
    """
    try:
        gradients = torch.autograd.grad(loss.sum(), outputs, create_graph=True, allow_unused=True, retain_graph=True)
        first = [_uneven_sum(gradient[0]) for gradient in gradients if gradient is not None and gradient.requires_grad]
        if not first:
            return
        second = torch.autograd.grad(torch.stack(first).sum(), outputs, allow_unused=True, retain_graph=True)
    except RuntimeError:
        return  # an operator without a second derivative
    others = [block[1:].abs().max() for block in second if block is not None and len(block) > 1]
    own = [block[0].abs().max() for block in second if block is not None]
    if others and torch.stack(others).max() > 1e-5 * torch.stack(own).max().clamp(min=1e-30):
        raise UnsupportedModel(
            f"the loss mixes records: the gradient of one depends on the output of another. {_REMEDY}"
        )


def _uneven_sum(values: Tensor) -> Tensor:
    """A sum with irregular weights: the entries of many gradients add up to zero by themselves."""
    flat = values.flatten()
    return flat @ torch.cos(torch.arange(1.0, len(flat) + 1, dtype=flat.dtype, device=flat.device))


def _reductions(loss: Tensor) -> set[Reduction]:
    """How the batch was turned into one number: every way from the loss must end in a mean or a sum at once."""
    found: set[Reduction] = set()
    nodes: list[Any] = [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None:
            continue
        name = type(node).__name__
        saved = getattr(node, "_saved_reduction", None)
        if saved in _SAVED:
            _refuse_batch_weights(node)
            found.add(_SAVED[saved])
        elif name == "MeanBackward0":
            found.add("mean")
        elif name == "SumBackward0":
            _refuse_reduced_records(node)
            found.add("sum")
        elif name.startswith(_HARMLESS):
            nodes.extend(following for following, _ in node.next_functions)
        else:
            raise UnsupportedModel(
                f"the loss mixes records: {name.removesuffix('0').removesuffix('Backward')} was applied after, or instead of, a mean "
                f"or sum over the batch. {_REMEDY}"
            )
    return found


def _refuse_reduced_records(node: Any) -> None:
    """mean(0).sum() is a mean in disguise."""
    for following, _ in node.next_functions:
        while type(following).__name__.startswith("AliasBackward"):
            following = following.next_functions[0][0]
        dimensions = getattr(following, "_saved_dim", None)
        if type(following).__name__ == "MeanBackward1" and dimensions is not None and 0 in dimensions:
            raise UnsupportedModel(f"the loss takes a mean over the records and then a sum. {_REMEDY}")


def _refuse_batch_weights(node: Any) -> None:
    """A mean over class weights or over unmasked targets divides by a sum over the whole batch."""
    if node._saved_reduction != 1 or not hasattr(node, "_saved_total_weight"):
        return
    if node._saved_weight is not None or int(node._saved_total_weight) != node._saved_target.numel():
        raise UnsupportedModel(
            f"the loss mixes records: a mean with class weights or ignored targets divides by a total over the batch. {_REMEDY}"
        )
