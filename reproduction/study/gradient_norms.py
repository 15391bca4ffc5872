"""The norms of unclipped gradients, which only public data may show."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from apportion.compare.resolve import Subject
from apportion.data import KNOWN
from apportion.errors import InvalidArgument

RECORDS, TOGETHER = 2000, 250
"""How many records are looked at, and how many at one time."""


def median_norms(data: str, subject: Subject) -> Callable[[nn.Module], float]:
    """A function that gives the median of ‖∇ℓ_i‖ over the first records of published data.

    Args:
        data: its name. Anything but a published benchmark is refused: the norm of one record's gradient tells about that record, and
            no noise covers it.
    """
    if data not in KNOWN:
        raise InvalidArgument(
            "kind",
            "norms",
            f"raw gradient norms of {data} would be read without noise, and only published benchmarks are known to be public",
            'Use kind = "training", or a benchmark: ' + ", ".join(KNOWN),
        )
    inputs, targets = (torch.as_tensor(part[:RECORDS]) for part in subject.train)

    def median(model: nn.Module) -> float:
        parameters = {name: value.detach() for name, value in model.named_parameters()}

        def loss(values: dict[str, Tensor], one: Tensor, target: Tensor) -> Tensor:
            return cross_entropy(functional_call(model, values, (one[None],)), target[None])

        norms = []
        for start in range(0, len(inputs), TOGETHER):
            batch = slice(start, start + TOGETHER)
            gradients = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, inputs[batch], targets[batch])
            norms.append(torch.stack([value.flatten(1).norm(dim=1) for value in gradients.values()]).norm(dim=0))
        return float(torch.cat(norms).median())

    return median
