"""A model that computes its loss itself, from labels among its inputs, as one that gives the loss of each record."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class ModelLoss(nn.Module):
    """The losses of single records, of a model that returns `loss`: ℓ_i = model(record i alone).loss.

    The loss that such a model returns for a batch is a mean that records share, often divided by a count of tokens of the whole batch.
    Of one record alone it is that record's own. So records run one by one, or under `vmap`, which is slow: where the model also returns
    `logits`, `fine_tune` is faster.

    Args:
        model: a model of transformers whose output has `loss` when its inputs hold the labels, under whatever names.

    Guarantee: the loss of a record depends on that record alone.

    Examples:
        >>> import torch
        >>> import apportion as ap
        >>> class Model(torch.nn.Linear):
        ...     def forward(self, x, labels):
        ...         return {"loss": (super().forward(x) - labels).square().mean()}
        >>> losses = ap.integrations.ModelLoss(Model(3, 1))(x=torch.zeros(4, 3), labels=torch.zeros(4, 1))
        >>> losses.shape
        torch.Size([4])
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> Tensor:
        records = range(next(iter(inputs.values())).shape[0])
        return torch.stack([self._alone({name: value[i : i + 1] for name, value in inputs.items()}) for i in records])

    def _alone(self, record: dict[str, Any]) -> Tensor:
        loss: Tensor = self.model(**record)["loss"]
        return loss.reshape(())


def given_losses(outputs: Tensor, _: Any) -> Tensor:
    """The losses that the model has computed."""
    return outputs
