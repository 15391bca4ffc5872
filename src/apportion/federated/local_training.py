"""What a client does with its own records: a few steps of ordinary SGD. Nothing of it is private by itself; the server's noise is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from apportion import validate
from apportion.curator.records import as_records
from apportion.curator.tree import call_model, map_tensors
from apportion.errors import InvalidArgument
from apportion.models.synthetic import model_device
from apportion.training.named_losses import as_loss
from apportion.validate import Checked, check, checked, non_negative, positive, whole


def _read_loss(argument: str, value: Any, why: str, fix: str) -> Any:
    if not isinstance(value, str) and not callable(value):
        raise InvalidArgument(argument, validate.shown(value), why, fix)
    return as_loss(value)


@dataclass(frozen=True)
class LocalSGD(Checked):
    """Local training: w ← w − lr·∇ mean loss of a mini-batch, over shuffled epochs of a client's records. (McMahan et al. 2017, FedAvg.)

    Args:
        lr: of the clients, not of the server.
        loss: the name of an `apportion.Loss`, or a function of outputs and targets; its mean over a mini-batch is minimised.
        epochs: passes over a client's records.
        batch_size: records in a mini-batch.
        momentum: of the clients' SGD, which begins anew in every round.

    Guarantee: none by itself, and none is needed: whatever a client computes is clipped and noised by the server.
    """

    prefix = "local"
    lr: float = field(metadata=check(positive, "a client that does not move sends nothing", "Try lr=0.1"))
    loss: str | Callable[[Any, Any], Tensor] = field(
        default="cross-entropy",
        metadata=check(_read_loss, "it is neither the name of a loss nor a function", 'Try loss="cross-entropy"'),
    )
    epochs: int = checked(1, whole, "it is a number of passes", "Try epochs=1")
    batch_size: int = checked(32, whole, "it is a number of records", "Try batch_size=32")
    momentum: float = checked(0.0, non_negative, "it is a part of the last step", "Try momentum=0.9")

    def __call__(self, model: nn.Module, data: Any) -> None:
        """Train `model` in place on the records of one client: a pair (inputs, targets), or a map-style Dataset of such pairs."""
        records, device = as_records(data), model_device(model)
        loss: Any = self.loss
        optimizer = torch.optim.SGD(
            (one for one in model.parameters() if one.requires_grad), lr=self.lr, momentum=self.momentum
        )
        for _ in range(self.epochs):
            for part in torch.randperm(len(records)).split(self.batch_size):
                inputs, targets = map_tensors(lambda tensor: tensor.to(device), records.batch(part.numpy()))
                optimizer.zero_grad()
                loss(call_model(model, inputs), targets).mean().backward()
                optimizer.step()
