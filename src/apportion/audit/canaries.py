"""Canaries: records made by the auditor, whose gradient is large and points along coordinates that no other canary uses.

A canary asks for the worst that a record is allowed to do. Its gradient is K along one coordinate of every group of parameters, with
K far above the threshold C, so it moves the sum by C if clipping works and by more if not; the coordinate is its own, so whether it
is there can be read from one number of each release. The coordinates are dealt to the layers in turn: a fault in one layer shows in
that layer's canaries.

There are two ways to plant them. `CanaryNetwork` has real layers and a linear loss under which an ordinary record *has* such a
gradient: nothing between record and release is replaced. In a model of a person's own, `CanaryGradients` replaces the gradients that
the engine computed; clipping, sum, noise, charge and sampling are the real ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from apportion import validate
from apportion.curator.clipping import group_names
from apportion.curator.gradients.engine import Engine
from apportion.curator.gradients.losses import LossFunction
from apportion.curator.gradients.model_walk import trained_parameters
from apportion.curator.records import Batch, Records
from apportion.curator.tree import map_tensors
from apportion.errors import ApportionError, InvalidArgument
from apportion.releases import ClippedSum
from apportion.request import Released

EXCESS = 1000.0
"""K/C at the first step: without clipping a canary would weigh a thousand times what it may."""

ABSENT = -1
"""Stands for the coordinate that a canary does not have, in a group with fewer parameters than there are canaries."""

Coordinates = NDArray[np.int64]
"""(canaries, groups): places in all trained parameters, flattened and put one after the other in the order of the model."""


def deal_coordinates(releases: Sequence[ClippedSum], sizes: Mapping[str, int], canaries: int) -> Coordinates:
    """One coordinate a canary in the group of every release, dealt to the group's parameters in turn until each is full.

    Args:
        sizes: how many numbers each trained parameter has, by name, in the order of the model.
        canaries: m, at most the size of the largest group.
    """
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()]), strict=False))
    groups = [_in_turn(starts, sizes, group_names(release, list(sizes)), canaries) for release in releases]
    most = max(len(group) for group in groups)
    if most < canaries:
        raise InvalidArgument(
            "canaries",
            canaries,
            f"each needs a coordinate of its own, and the largest group of parameters has {most}",
            f"Use canaries={most} or fewer, or a larger model",
        )
    return np.stack([np.pad(group, (0, canaries - len(group)), constant_values=ABSENT) for group in groups], axis=1)


def _in_turn(starts: Mapping[str, int], sizes: Mapping[str, int], names: Sequence[str], most: int) -> NDArray[np.int64]:
    """At most `most` places: the first of every parameter, then the second of every parameter, ..."""
    spread = np.random.default_rng(0)  # within a parameter the places are mixed, so that they reach all its rows
    known = [validate.known("releases", name, sizes, "the model trains no such parameter") for name in names]
    places = [starts[name] + spread.permutation(sizes[name])[:most] for name in known]
    turns = np.concatenate([np.arange(len(part)) for part in places])
    dealt: NDArray[np.int64] = np.concatenate(places)[np.argsort(turns, kind="stable")][:most]
    return dealt


def log_likelihood_ratios(
    released: Released, names: Sequence[str], coordinates: Coordinates, amount: float
) -> NDArray[np.float64]:
    """For each canary the evidence of one release that the canary is in the data: log(1 − q + q·e^E).

    E = Σ_g (2·v_g·y_g − v_g²)/(2·s_g²) over the groups g, where y_g is the noisy sum at the canary's coordinate, v_g = min(K, C_g) what
    the canary adds to it if it was drawn, and s_g the declared standard deviation. For one group and y in units of C this is the
    exponent (2y − 1)/(2σ²). The sum over steps is the most powerful score against a library that does what it declares; against
    any other it is still a score, and every bound stays valid.

    Args:
        names: the trained parameters in the order of the model, which a release need not keep.
        amount: K.
    """
    request = released.request
    flat = {name: released.gradient[name].flatten().to("cpu", torch.float64) for name in names}
    noisy = torch.cat(list(flat.values())).numpy()
    if not np.isfinite(noisy).all():
        raise ApportionError(
            "a released gradient is not finite: no record may cause that, so clipping or noise is broken"
        )
    evidence = np.zeros(len(coordinates))
    group_of = {name: release for release in request.sums for name in group_names(release, names)}
    sizes = [len(part) for part in flat.values()]
    contribution = np.repeat([min(amount, group_of[name].threshold) for name in names], sizes)
    deviation = np.repeat([request.standard_deviation(group_of[name]) for name in names], sizes)
    for places in coordinates.T:
        seen = noisy[places] * request.expected_batch_size
        v, s = contribution[places], deviation[places]
        evidence += np.where(places == ABSENT, 0.0, v * (2 * seen - v) / (2 * s**2))
    rate = request.sample_rate
    return evidence if rate == 1 else np.logaddexp(math.log1p(-rate), math.log(rate) + evidence)


class CanaryNetwork(nn.Module):
    """Linear layers side by side, with one output each for a target to weigh: ⟨target, output⟩ is the loss of a record.

    Under it the record (e_k, K·e_j) has the gradient K at row j and column k of the layer that holds output j, and 0 elsewhere.
    """

    def __init__(self, canaries: int, layers: int = 4):
        super().__init__()
        self.width = math.ceil(math.sqrt(canaries / layers))
        self.layers = nn.ModuleList(nn.Linear(self.width, self.width, bias=False) for _ in range(layers))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.cat([layer(inputs) for layer in self.layers], dim=-1)

    @staticmethod
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs * targets).sum()

    @property
    def example(self) -> Batch:
        return torch.zeros(self.width), torch.zeros(len(self.layers) * self.width)

    def records(self, places: NDArray[np.int64], amount: float) -> Records:
        """Records with gradient `amount` at these places."""
        rows, columns = (torch.from_numpy(part) for part in np.divmod(places, self.width))
        inputs, outputs = torch.eye(self.width), len(self.layers) * self.width

        def batch(indices: NDArray[np.int64]) -> Batch:
            chosen = torch.from_numpy(indices)
            targets = amount * nn.functional.one_hot(rows[chosen], outputs).to(inputs.dtype)
            return inputs[columns[chosen]], targets

        return Records(len(places), batch, self.example)


class CanaryGradients:
    """An engine, with the gradient of every record replaced by that of the canary whose number it carries.

    The model is really run and differentiated, on the synthetic example; only the result is exchanged.
    """

    def __init__(self, engine: Engine, coordinates: Coordinates, amount: float):
        self._engine, self.model, self.mode = engine, engine.model, engine.mode
        self._coordinates, self._amount = coordinates, amount
        self._numbers: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def sync_weights(self) -> None:
        self._engine.sync_weights()

    def forward(self, inputs: Any, views: int = 1) -> Any:
        numbers, example = inputs
        self._numbers = numbers[::views].numpy()
        return self._engine.forward(example, views)

    def record_losses(self, loss_fn: LossFunction, outputs: Any, targets: Any) -> Tensor:
        return self._engine.record_losses(loss_fn, outputs, targets)

    def require_own_parameters(self, loss: Tensor) -> None:
        self._engine.require_own_parameters(loss)

    def gradients(self) -> dict[str, Tensor]:
        """Written out: those of the canaries."""
        self._engine.gradients()
        trained = trained_parameters(self.model)
        sizes = [parameter.numel() for parameter in trained.values()]
        records, places = np.nonzero(self._coordinates[self._numbers] != ABSENT)
        flat = torch.zeros(len(self._numbers), sum(sizes))
        flat[torch.from_numpy(records), torch.from_numpy(self._coordinates[self._numbers[records], places])] = (
            self._amount
        )
        parts = flat.split(sizes, dim=1)
        return {
            name: part.reshape(-1, *parameter.shape).to(parameter.dtype)
            for (name, parameter), part in zip(trained.items(), parts, strict=True)
        }

    @staticmethod
    def records(numbers: NDArray[np.int64], example: Batch) -> Records:
        """Records that carry the numbers of canaries; all else is the synthetic `example`, which holds no private value."""

        def batch(indices: NDArray[np.int64]) -> Batch:
            inputs, targets = map_tensors(lambda tensor: tensor.expand(len(indices), *tensor.shape), example)
            return (torch.from_numpy(numbers[indices]), inputs), targets

        return Records(len(numbers), batch, example)
