"""Federated cells: clients with randomly distorted images, in the place of InfiniteMNIST, which is not published in parts for clients.

Client u has a few images of the data set, each rotated, scaled, sheared and shifted at random. They follow from u, so that they are the
same in every round and every run, and are made when u is asked: as many clients as one likes need no more memory than the data set.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from apportion import federated
from apportion.compare.experiment import Experiment, RecipeChoice, StrictModel
from apportion.compare.resolve import Subject
from apportion.planning import Plan
from apportion.reporting.result import RunResult
from apportion.reporting.write import describe_run

DISTORTION = 0.1
"""The standard deviation of angle in radians, relative size, shear, and shift in half widths of the image."""


class ClientChoice(StrictModel):
    """What clients have and do; how many there are is the population of the experiment.

    Args:
        images: of each client.
        lr, batch_size, epochs: of their local training.
    """

    images: int = Field(ge=1)
    lr: float = Field(gt=0)
    batch_size: int = Field(ge=1)
    epochs: int = Field(default=1, ge=1)


class DistortedClients:
    """The data of each client, by its number: (images, classes).

    Args:
        images, classes: what clients' images are made of.
        clients: how many there are.
        each: images of a client.
    """

    def __init__(self, images: Tensor, classes: Tensor, clients: int, each: int):
        self._images, self._classes, self._clients, self._each = images, classes, clients, each

    def __len__(self) -> int:
        return self._clients

    def __getitem__(self, client: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(client)
        chosen = torch.randint(len(self._images), (self._each,), generator=generator)
        angle, size, shear, right, down = DISTORTION * torch.randn(5, self._each, generator=generator)
        cosine, sine = torch.cos(angle) * (1 + size), torch.sin(angle) * (1 + size)
        rows = torch.stack([cosine, shear - sine, right, sine, cosine, down], 1).view(-1, 2, 3)
        grid = affine_grid(rows, [self._each, *self._images.shape[1:]], align_corners=False)
        return grid_sample(self._images[chosen], grid, align_corners=False), self._classes[chosen]


def run_clients(
    experiment: Experiment, choice: RecipeChoice, clients: ClientChoice, subject: Subject, seed: int | None, plan: Plan
) -> RunResult:
    """Train on clients once and describe the run. Learning rate, optimiser and activation are the server's."""
    torch.manual_seed(seed or 0)  # the initial weights are public
    started, lr = time.perf_counter(), choice.lr or experiment.lr
    images, classes = subject.train
    run = federated.train(
        subject.build(choice.activation or experiment.activation),
        DistortedClients(images, classes, plan.sampling.population, clients.images),
        federated.LocalSGD(lr=clients.lr, epochs=clients.epochs, batch_size=clients.batch_size),
        plan,
        lr=lr,
        optimizer=choice.optimizer or experiment.optimizer,
        evaluate=subject.test,
        evaluate_every=experiment.evaluate_every,
        seed=seed,
        stop=experiment.stopping(),
        progress=False,
    )
    found = describe_run(run.statement(), run.configuration(), [entry.as_json() for entry in run.history])
    details: dict[str, Any] = {**found.details, "clients": clients.model_dump(), "lr": lr}
    result = replace(
        found,
        recipe=choice.shown,
        data=subject.data_name,
        model=subject.model_name,
        seed=seed,
        details=details,
        seconds=round(time.perf_counter() - started, 3),
    )
    return result.with_score(result.score)
