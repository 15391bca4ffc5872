"""The losses of single records at other weights than the model's, for questions about candidates on a line.

ℓ_ij, the loss of record i at w − α_j·d, is computed on the same path as for a gradient: the engine runs the model in training mode, with
autograd on, so what was proved about the model's records staying apart holds here too. It is clipped to [0, C_obj] in float64; one that is
not finite counts C_obj. Only sums over records leave this file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from apportion.curator.gradients.engine import Engine
from apportion.curator.gradients.losses import LossFunction
from apportion.curator.gradients.model_walk import trained_parameters
from apportion.curator.records import Batch
from apportion.devices import model_devices, remember_generators, with_float64
from apportion.releases import FirstGain, Selection


def sum_losses(engine: Engine, loss_fn: LossFunction, batch: Batch, release: Selection) -> Tensor:
    """What the records of `batch` add to each candidate: Ω_j = Σ_i ℓ_ij, or Σ_i (ℓ_i(w) − ℓ_ij) for a `FirstGain`; (k,), in float64."""
    put_back = remember_generators(model_devices(engine.model))  # all candidates meet the same dropout

    def losses_at(step_size: float) -> Tensor:
        put_back()
        with _moved(engine, release.line.direction, step_size):
            return _clipped_losses(engine, loss_fn, batch, release.bound)

    losses = torch.stack([losses_at(step_size) for step_size in release.line.step_sizes])
    if isinstance(release, FirstGain):
        losses = losses_at(0.0) - losses
    return losses.sum(dim=1).cpu()


def _clipped_losses(engine: Engine, loss_fn: LossFunction, batch: Batch, bound: float) -> Tensor:
    inputs, targets = batch
    losses = engine.record_losses(loss_fn, engine.forward(inputs), targets)
    engine.require_own_parameters(losses.sum())
    return with_float64(losses.detach()).double().nan_to_num(bound, bound, bound).clamp(0.0, bound)


@contextmanager
def _moved(engine: Engine, direction: Mapping[str, Tensor], step_size: float) -> Iterator[None]:
    """The engine at w − α·d. The model is bit for bit as before afterwards, and does not show that it was written to."""
    parameters = trained_parameters(engine.model)
    weights = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    try:
        for name, parameter in parameters.items():
            parameter.data.sub_(
                direction[name].to(parameter.device), alpha=step_size
            )  # `.data`: a count of writes would tell of the batch
        engine.sync_weights()
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data.copy_(weights[name])
        engine.sync_weights()
