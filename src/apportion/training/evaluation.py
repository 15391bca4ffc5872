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


def require_public(data: object) -> Public:
    """Refuse evaluation data that nobody declared public."""
    if not isinstance(data, Public):
        raise InvalidArgument(
            "evaluate",
            type(data).__name__,
            "a score on private records is an un-noised read of them",
            "If anything about this data may be published, say so: evaluate=apportion.Public(test_data)",
        )
    return data


def accuracy(model: nn.Module, public: Public) -> float:
    """The fraction of records whose largest output is the target's."""
    records = as_records(public.data)
    was_training = model.training
    model.eval()
    correct = 0
    with torch.no_grad():
        for start in range(0, len(records), _BATCH):
            inputs, targets = records.batch(np.arange(start, min(start + _BATCH, len(records))))
            outputs = call_model(model, inputs)
            if not isinstance(outputs, Tensor) or outputs.dim() != 2:
                raise InvalidArgument(
                    "evaluate", "this model", "accuracy needs outputs of shape (batch, classes)", "Leave evaluate out"
                )
            correct += int((outputs.argmax(1) == targets).sum())
    model.train(was_training)
    return correct / len(records)
