"""A run whose records are canaries, and an auditor who looks at every release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from apportion.audit.canaries import (
    EXCESS,
    CanaryGradients,
    CanaryNetwork,
    Coordinates,
    deal_coordinates,
    log_likelihood_ratios,
)
from apportion.audit.guessing import Scores
from apportion.curator.curator import LossFunction
from apportion.curator.gradients.engine import build_engine
from apportion.curator.gradients.model_walk import trained_parameters
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.errors import InvalidArgument
from apportion.execution import Execution
from apportion.models.check import copy_model
from apportion.planning import Plan
from apportion.releases import ClippedSum, Noised
from apportion.request import Released
from apportion.strategies.clip import Clip
from apportion.strategies.context import Context
from apportion.training.opening import open_session, require_trainable
from apportion.training.optimizers import build_optimizer
from apportion.training.session import Session, Setup

_LEARNING_RATE = 1e-3  # what the model learns does not matter: no canary's gradient depends on it


def parameter_sizes(model: nn.Module) -> dict[str, int]:
    return {name: parameter.numel() for name, parameter in trained_parameters(model).items()}


def _first_releases(plan: Plan, model: nn.Module) -> tuple[ClippedSum, ...]:
    context = plan.context(1, {name: tuple(parameter.shape) for name, parameter in trained_parameters(model).items()})
    return plan.request(context, plan.clip.init(context)).sums


class Watched:
    """The audited clip strategy, with the auditor looking at every release over its shoulder."""

    def __init__(self, clip: Clip, names: Sequence[str], coordinates: Coordinates, amount: float):
        self._clip, self._names, self._coordinates, self._amount = clip, names, coordinates, amount
        self.scores: Scores = np.zeros(len(coordinates))

    def init(self, context: Context) -> Any:
        return self._clip.init(context)

    def propose(self, state: Any, context: Context) -> tuple[Noised, ...]:
        return self._clip.propose(state, context)

    def observe(self, state: Any, released: Released) -> Any:
        self.scores += log_likelihood_ratios(released, self._names, self._coordinates, self._amount)
        return self._clip.observe(state, released)


def plant(
    model: nn.Module | None,
    loss_fn: LossFunction | None,
    data: Any,
    included: NDArray[np.bool_],
    plan: Plan,
    execution: Execution,
    randomness: Randomness,
) -> tuple[Session, LossFunction, Watched]:
    """A session whose records are the canaries that are included, and whose releases are watched."""
    network = CanaryNetwork(len(included))
    if model is None and len(_first_releases(plan, network)) > 1:  # a canary then needs a place in several layers
        network = CanaryNetwork(len(included) * len(network.layers))
    if model is None:
        model, loss_fn, example = network, CanaryNetwork.loss, network.example
    elif loss_fn is None or data is None:
        raise InvalidArgument(
            "model", type(model).__name__, "its loss or its data is missing", "Pass loss_fn and data too"
        )
    else:
        model, example = copy_model(model), as_records(data).example
    releases = _first_releases(plan, model)
    coordinates = deal_coordinates(releases, parameter_sizes(model), len(included))
    amount = EXCESS * max(release.threshold for release in releases)
    watched = Watched(plan.clip, list(parameter_sizes(model)), coordinates, amount)
    end_to_end = model is network and len(releases) == 1
    if end_to_end:
        records = network.records(coordinates[included, 0], amount)
    else:
        records = CanaryGradients.records(np.flatnonzero(included), example)
    choice = require_trainable(model, loss_fn, records)
    setup = Setup(
        model=model,
        optimizer=build_optimizer(model, "sgd", _LEARNING_RATE),
        records=records,
        plan=replace(plan, recipe=replace(plan.recipe, clip=watched, noise=plan.noise)),
        choice=choice,
        execution=execution,
        randomness=randomness,
        engine=None if end_to_end else CanaryGradients(build_engine(model, choice), coordinates, amount),
    )
    return open_session(setup), loss_fn, watched
