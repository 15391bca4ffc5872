"""How good a model is on data declared public. Free: it reads nothing private but the released model."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from apportion.budget import Public
from apportion.curator.records import as_records
from apportion.curator.tree import call_model
from apportion.errors import InvalidArgument

_BATCH = 1024


def require_public(data: object, argument: str = "evaluate") -> Public:
    """Refuse data for evaluation or validation that nobody declared public."""
    if not isinstance(data, Public):
        raise InvalidArgument(
            argument,
            type(data).__name__,
            "a score on private records is an un-noised read of them",
            f"If anything about this data may be published, say so: {argument}=apportion.Public(data)",
        )
    return data


def require_measurable(model: nn.Module, data: object, argument: str = "evaluate") -> None:
    """Refuse, under the name of its argument, data that is not public or on which the model's accuracy cannot be measured."""
    public = require_public(data, argument)
    try:
        accuracy(model, public)
    except InvalidArgument as error:
        raise InvalidArgument(argument, error.value, error.reason, error.fix) from error
    except Exception as error:
        reason = f"the model fails on this data ({type(error).__name__}: {error})"
        raise InvalidArgument(
            argument, "Public(...)", reason, "Pass records like those that it is trained on"
        ) from error


def accuracy(model: nn.Module, public: Public) -> float:
    """The fraction of records that are classified right: by the largest output, or by the sign of a single one (a logit)."""
    records = as_records(public.data)
    was_training = model.training
    model.eval()
    correct = 0
    try:
        with torch.no_grad():
            for start in range(0, len(records), _BATCH):
                inputs, targets = records.batch(np.arange(start, min(start + _BATCH, len(records))))
                correct += int(_right(call_model(model, inputs), targets).sum())
    finally:
        model.train(was_training)
    return correct / len(records)


def _right(outputs: object, targets: Tensor) -> Tensor:
    if (
        isinstance(outputs, Tensor)
        and outputs.dim() == 2
        and outputs.shape[1] > 1
        and targets.shape == outputs.shape[:1]
    ):
        return outputs.argmax(1) == targets
    if (
        isinstance(outputs, Tensor)
        and outputs.numel() == targets.numel() == len(targets)
        and bool(((targets == 0) | (targets == 1)).all())
    ):
        return (outputs.reshape(-1) > 0) == (targets.reshape(-1) > 0.5)
    found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    raise InvalidArgument(
        "evaluate",
        f"outputs {found}, targets {tuple(targets.shape)}",
        "accuracy needs outputs (batch, classes) with class numbers, or one logit a record with targets 0 and 1",
        "Leave it out and measure on public data yourself",
    )
