"""Whether the gradients of single records are those that an ordinary backward pass finds, after the weights have moved.

All engines give every record weights of its own for the time of the forward pass. Code that runs layers *again in the backward pass* is
past that time, and finds the layers' own weights:

- `torch.utils.checkpoint` with use_reentrant=True differentiates there, so that what the records' weights get is zero. Training would be
  on noise alone, and nothing would show it;
- with use_reentrant=False it computes activations again, from weights that may be those of an earlier step.

An engine that is compared with another one does not show either, if both are wrong in the same way, nor does a model whose weights are
still the first ones. So the sum of the records' gradients is compared with plain autograd on the model itself, on synthetic records, after
the weights were changed behind the engine's back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from apportion.curator.clipping import as_gradients
from apportion.curator.gradients.engine import Engine, EngineChoice, build_engine
from apportion.curator.gradients.losses import LossFunction
from apportion.curator.gradients.reference import trained_parameters
from apportion.curator.tree import batch_size, call_model, map_tensors
from apportion.errors import UnsupportedModel
from apportion.models.check import copy_model
from apportion.models.synthetic import named_tensors, tensors_agree

_WEIGHT_FACTOR = 0.9
"""What weights are multiplied by after the engine was made."""


def require_live_gradients(
    model: nn.Module, choice: EngineChoice, loss_fn: LossFunction | None, records: Any, targets: Any
) -> None:
    """Refuse a model of whose trained parameters one has no gradient in this engine, or another one than in plain autograd.

    Args:
        model: in train() mode, with dropout off. A copy of it is run.
        choice: the engine that was chosen.
        loss_fn: as of `train`; with `None` the size of the outputs stands for it.
        records, targets: a synthetic batch that the model and the loss accept.
    """
    subject = copy_model(model)
    engine = build_engine(subject, choice)
    with torch.no_grad():
        for parameter in trained_parameters(subject).values():
            parameter.mul_(_WEIGHT_FACTOR)
    engine.sync_weights()
    sums = _seeded(0, lambda: _engine_gradients(engine, loss_fn, records, targets))
    plain, other = (_seeded(seed, lambda: _autograd_gradients(subject, loss_fn, records, targets)) for seed in (0, 1))
    different = _find_differences(sums, plain)
    if dead := [name for name in different if not sums[name].any()]:
        raise UnsupportedModel(
            f"The gradients of single records are zero for {', '.join(dead)}, where an ordinary backward pass has others: what would be "
            "trained on is noise alone. Something runs layers again in the backward pass, past the weights of the record, as "
            "torch.utils.checkpoint does with use_reentrant=True. Pass use_reentrant=False, or leave it out: micro-batches bound memory."
        )
    if different and not _find_differences(other, plain):  # where something random is left, they always are
        raise UnsupportedModel(
            f"The gradients of single records for {', '.join(different)} are not those of an ordinary backward pass, once weights have "
            "moved. Something runs layers again in the backward pass with other weights, as torch.utils.checkpoint may do, or keeps a "
            "copy of them. Leave it out: micro-batches bound memory."
        )


def _engine_gradients(engine: Engine, loss_fn: LossFunction | None, records: Any, targets: Any) -> dict[str, Tensor]:
    outputs = engine.forward(map_tensors(torch.clone, records))
    loss = _size(outputs) if loss_fn is None else engine.record_losses(loss_fn, outputs, targets).sum()
    loss.backward()
    trained = trained_parameters(engine.model)
    with torch.no_grad():
        gradients = as_gradients(engine.gradients())
        weights = torch.ones(len(gradients), dtype=torch.float64)
        sums = gradients.weighted_sums(dict.fromkeys(trained, weights))
        return {name: sums[name].to(parameter.dtype) for name, parameter in trained.items()}


def _autograd_gradients(
    model: nn.Module, loss_fn: LossFunction | None, records: Any, targets: Any
) -> dict[str, Tensor]:
    """Of every record alone, each through a copy of the model that has seen no other, added up."""
    sums = {name: torch.zeros_like(parameter) for name, parameter in trained_parameters(model).items()}
    for i in range(batch_size(records)):
        record, target = map_tensors(lambda tensor, i=i: tensor[i : i + 1].clone(), (records, targets))
        subject = copy_model(model)
        outputs = call_model(subject, record)
        loss = _size(outputs) if loss_fn is None else loss_fn(outputs, target).sum()
        loss.backward()
        for name, parameter in trained_parameters(subject).items():
            if parameter.grad is not None:
                sums[name] += parameter.grad
    return sums


def _find_differences(found: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    """Where they differ by more than rounding, measured against the largest of all: the gradient of one weight may be rounding alone."""
    largest = torch.stack([value.abs().max().double() for value in expected.values() if value.numel()]).max()

    def beside_the_largest(value: Tensor) -> Tensor:
        return torch.cat([value.flatten(), largest.reshape(1).to(value.dtype)])

    pairs = ((name, beside_the_largest(found[name]), beside_the_largest(value)) for name, value in expected.items())
    return [name for name, one, two in pairs if not tensors_agree(one, two, looseness=10)]


def _size(outputs: Any) -> Tensor:
    return torch.stack([tensor.abs().sum() for _, tensor in named_tensors(outputs) if tensor.requires_grad]).sum()


def _seeded(seed: int, work: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return work()
