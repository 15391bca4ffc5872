"""Find out by running it whether a model, or a loss, mixes records.

A layer written by hand says nothing by its type, so a copy of the model is run on synthetic records: each must give the same
result alone as together with others. No real record is ever read (an example gives only shapes and types), the model passed in is not
changed, and neither is the global random state of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from apportion.errors import UnsupportedModel
from apportion.models.check import copy_model
from apportion.models.synthetic import (
    RECORDS,
    Tree,
    bitwise_equal,
    find_runnable,
    find_runnable_batch,
    fix_seed,
    model_device,
    named_tensors,
    prepare_model,
    run_model,
    select_records,
    synthetic_batches,
    tensors_agree,
    trees_agree,
)

LossFunction = Callable[[Any, Any], torch.Tensor]

# Further sizes of a batch: a model may look at its size, as one does that normalises groups of four.
_BATCH_SIZES = (12, 16)


class NotRepeatable(UnsupportedModel):
    """The same records give another output the next time."""

    def __init__(self) -> None:
        super().__init__(
            "The output for the same records changed from one pass to the next: the model remembers something of what it saw (in an "
            "attribute, a list or dict, a global), or draws random numbers from a generator of its own (random, numpy.random, "
            "torch.Generator). Keep no state between passes, and draw with torch's default generator, as nn.Dropout does."
        )


class MixedRecords(UnsupportedModel):
    """The output for a record is not its own."""

    def __init__(self) -> None:
        super().__init__(
            "The model mixes records: the output of one record changed when other records were in the batch. "
            "Compute statistics within a record only, as nn.GroupNorm and nn.LayerNorm do."
        )


def probe_model(model: nn.Module, example: Tree) -> None:
    """Raise `UnsupportedModel` unless the output for a record is its own and running the model changes no state.

    `example` is one record without a batch dimension. A tensor is passed as `model(x)`, a tuple or list as `model(*x)`, a
    dict as `model(**x)`, each with a batch dimension in front.
    """
    probe_records(model, example)
    probe_batch_sizes(model, example)


def probe_records(model: nn.Module, example: Tree) -> None:
    """As `probe_model`, with few records, each alone and all together."""
    _probe(prepare_model(model), example)


def probe_batch_sizes(model: nn.Module, example: Tree) -> None:
    """Raise `MixedRecords` if the outputs are other ones in large batches: for a model of which that is not proved."""
    subject = prepare_model(model)
    batch, outputs, _ = find_runnable_batch("example", subject, example)
    _require_same_in_large_batches(subject, batch, outputs, example)


def probe_fixed(model: nn.Module, example: Tree) -> None:
    """As `probe_model`, of a model that is only applied, never trained: as it is in eval() mode, and without anything random."""
    subject = copy_model(model).eval()
    batch, outputs = _probe(subject, example)
    _require_same_in_large_batches(subject, batch, outputs, example)
    if not trees_agree(run_model(subject, batch, seed=1), outputs):
        raise UnsupportedModel(
            "The output for the same records depends on random numbers, also in eval() mode. Remove what draws them."
        )


def _probe(subject: nn.Module, example: Tree) -> tuple[Tree, Tree]:
    """Synthetic records and their outputs, which are each record's own."""
    state = _copy_state(subject)
    batch, outputs, alone = find_runnable_batch("example", subject, example)
    _require_unchanged(state, subject, "model")
    _require_batch_dimension(outputs)
    _require_records_apart(subject, batch, outputs, alone)
    return batch, outputs


def _require_records_apart(subject: nn.Module, batch: Tree, outputs: Tree, alone: list[Tree]) -> None:
    """The outputs of a record must be the same alone and with others."""
    coarsest = _coarsest_type(subject)
    if not trees_agree(run_model(subject, batch, seed=0), outputs, coarsest):
        raise NotRepeatable
    repeatable = _is_repeatable(subject, batch, outputs)
    for index, other in enumerate(alone):
        _require_single_shape(other, outputs)
        if not repeatable:
            # Something random is left in the model. The same seed gives a batch of the same size the same draws, so the
            # other records are exchanged instead of taken away.
            others = [place if place == index else (place + 1) % RECORDS for place in range(RECORDS)]
            other = select_records(run_model(subject, select_records(batch, others), seed=0), [index])
        if not trees_agree(select_records(outputs, [index]), other, coarsest):
            again = run_model(subject, select_records(batch, [index]), seed=0)
            raise MixedRecords if trees_agree(again, alone[index], coarsest) else NotRepeatable


def _require_same_in_large_batches(subject: nn.Module, batch: Tree, outputs: Tree, example: Tree) -> None:
    if not _is_repeatable(subject, batch, outputs):
        return
    for size in _BATCH_SIZES:
        places = [place % RECORDS for place in range(size)]
        larger = iter([select_records(batch, places)])
        _, found = find_runnable(lambda given: run_model(subject, given, seed=0), larger, "The model", example)
        if not trees_agree(found, select_records(outputs, places), _coarsest_type(subject)):
            raise MixedRecords


def _is_repeatable(subject: nn.Module, batch: Tree, outputs: Tree) -> bool:
    """Whether nothing random is left in the model, whose outputs with another seed these are."""
    return trees_agree(run_model(subject, batch, seed=1), outputs, _coarsest_type(subject))


def _coarsest_type(subject: nn.Module) -> torch.dtype | None:
    types = (parameter.dtype for parameter in subject.parameters() if parameter.is_floating_point())
    return max(types, key=_coarseness, default=None)


def _coarseness(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


def probe_loss(model: nn.Module, loss_fn: LossFunction, example_inputs: Tree, example_target: Tree) -> None:
    """Raise `UnsupportedModel` unless `loss_fn(outputs, targets)` is made of terms that belong to one record each.

    It may return one value for each record, or their mean or their sum. The model is run once and its outputs are split, so
    a fault found here is of the loss.
    """
    subject = prepare_model(model)
    loss = copy_model(loss_fn) if isinstance(loss_fn, nn.Module) else loss_fn
    state = _copy_state(loss)
    _, outputs = find_runnable(
        lambda inputs: run_model(subject, inputs, seed=0),
        synthetic_batches("example_inputs", example_inputs, subject),
        "The model",
        example_inputs,
    )
    _require_batch_dimension(outputs)

    def evaluate(targets: Tree, chosen: list[int]) -> torch.Tensor:
        with fix_seed(0, model_device(subject)):
            return loss(select_records(outputs, chosen), select_records(targets, chosen))

    # Targets are drawn from [0, 1), as some losses take probabilities only.
    everyone = list(range(RECORDS))
    targets, together = find_runnable(
        lambda targets: evaluate(targets, everyone),
        synthetic_batches("example_target", example_target, subject, draw=torch.rand),
        "The loss",
        example_target,
    )
    _, alone = find_runnable(
        lambda targets: [evaluate(targets, [index]) for index in everyone], iter([targets]), "The loss", example_target
    )
    _require_unchanged(state, loss, "loss")
    for value, records in ((together, RECORDS), *((single, 1) for single in alone)):
        _require_loss_shape(value, records)
    singles = torch.stack([value.reshape(()) for value in alone])
    accepted = [singles] if together.numel() == RECORDS else [singles.mean(), singles.sum()]
    if not any(tensors_agree(together.reshape(value.shape), value) for value in accepted):
        raise UnsupportedModel(
            "The loss mixes records: for a batch it is not the values of its records, nor their mean or sum. "
            "Use reduction='none' and only terms that depend on one record, "
            "without dividing by anything that is counted or summed over the batch, as a mean with class weights does. "
            "A target must have the shape of the output: [records] beside [records, 1] is spread over the whole batch."
        )


def _copy_state(subject: object) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a module as they are now; nothing for a plain function."""
    if not isinstance(subject, nn.Module):
        return {}
    buffers = {f"buffer {name}": b.detach().clone() for name, b in subject.named_buffers()}
    return buffers | {f"parameter {name}": p.detach().clone() for name, p in subject.named_parameters()}


def _require_unchanged(before: dict[str, torch.Tensor], subject: object, what: str) -> None:
    after = _copy_state(subject)
    for name in before | after:
        if name not in before or name not in after or not bitwise_equal(before[name], after[name]):
            raise UnsupportedModel(
                f"The forward pass of the {what} changes its {name}, which would carry what it learns of the records past "
                "the noise. Remove the update, or make it outside of the forward pass from data that is not private."
            )


def _require_batch_dimension(outputs: Tree) -> None:
    tensors = named_tensors(outputs)
    if not tensors:
        raise UnsupportedModel(
            f"The model returned no tensor but {type(outputs).__name__}. "
            "Return a tensor, or a tuple, list or dict of tensors."
        )
    for name, tensor in tensors:
        if tensor.dim() == 0 or tensor.shape[0] != RECORDS:
            raise UnsupportedModel(
                f"The model's {name} has shape {list(tensor.shape)} for a batch of {RECORDS} records: "
                "its first dimension is not the batch, so no part of it belongs to one record. "
                "Return only tensors with one entry for each record in front. A loss that a model computes from labels among its inputs "
                "is one number for all of them: pass labels as the target, or use apportion.integrations.ModelLoss(model)."
            )


def _require_single_shape(alone: Tree, together: Tree) -> None:
    for (name, single), (_, batch) in zip(named_tensors(alone), named_tensors(together), strict=False):
        if single.shape != (1, *batch.shape[1:]):
            raise UnsupportedModel(
                f"The model's {name} has shape {list(single.shape)} for one record but {list(batch.shape)} for "
                f"{RECORDS}: the batch dimension of a single record is lost. "
                "Name the dimension in .squeeze(dim), and keep the first one in .reshape and .flatten."
            )


def _require_loss_shape(value: object, records: int) -> None:
    if not isinstance(value, torch.Tensor):
        raise UnsupportedModel(f"The loss returned {type(value).__name__}. Return a tensor.")
    if value.dim() > 0 and (value.numel() != records or value.shape[0] != records):
        raise UnsupportedModel(
            f"The loss has shape {list(value.shape)} for {records} records. "
            "Average or sum it over the other dimensions, so that it is one number, or one for each record."
        )
