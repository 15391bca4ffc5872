"""The eight workloads of the benchmark: a model, records of the right shape, and the batch they are trained with.

More are in more_workloads.py.

The records are random: what a step costs does not depend on their values. The networks are the usual ones of the field, so that no
engine is measured on what it was made for: the two MNIST networks and the CIFAR network of the papers on tempered sigmoids and on
thresholds, the texts and names of Opacus's tutorials, a plain transformer, and a wide residual network with group normalisation.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

POPULATION_IN_BATCHES = 8
"""Records in memory, in expected batches: every step draws each of them with probability 1/8."""


@dataclass(frozen=True)
class Workload:
    """One row of the benchmark.

    Args:
        build: makes the model.
        inputs: makes that many random inputs.
        classes: the number of classes of the targets.
        batch: the expected number of records in a step.
        parameters: how many the model has; checked whenever it is built.
        micro_batch: the most records that an engine handles at one time; all that were drawn if it is not given.
        pinned: ours handles so many, too. Otherwise it chooses by itself, as it would for anybody.
        within: ours runs the model within this, as `apportion.integrations.fine_tune` would.
        places: targets of a record, one for each word of a text; a single one if it is not given.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]
    classes: int
    batch: int
    parameters: int
    micro_batch: int | None = None
    pinned: bool = False
    places: int | None = None
    within: Callable[[nn.Module], AbstractContextManager[None]] | None = None

    @property
    def population(self) -> int:
        return POPULATION_IN_BATCHES * self.batch

    @property
    def pieces(self) -> int:
        """The most records that are handled at one time."""
        return self.micro_batch or self.population

    @property
    def images(self) -> bool:
        """Whether the memory layout "channels last" means anything here."""
        return self.inputs(1).dim() == 4

    def model(self) -> nn.Module:
        """The same initial weights at every call."""
        torch.manual_seed(0)
        model = self.build()
        count = sum(parameter.numel() for parameter in model.parameters())
        assert count == self.parameters, f"{self.name} has {count:,} parameters, not {self.parameters:,}"
        return model

    @functools.cache  # noqa: B019 - all engines of a process share them
    def records(self) -> tuple[Tensor, Tensor]:
        """(inputs, targets), the same at every call."""
        torch.manual_seed(1)
        shape = (self.population,) if self.places is None else (self.population, self.places)
        return self.inputs(self.population), torch.randint(self.classes, shape)

    def scaled(self, scale: float) -> Workload:
        """The same with smaller or larger batches."""
        if scale == 1:
            return self
        micro_batch = self.micro_batch and max(8, round(scale * self.micro_batch))
        return replace(self, batch=max(8, round(scale * self.batch)), micro_batch=micro_batch)


def images(*shape: int) -> Callable[[int], Tensor]:
    return lambda records: torch.rand(records, *shape)


def tokens(vocabulary: int, length: int) -> Callable[[int], Tensor]:
    return lambda records: torch.randint(1, vocabulary, (records, length))


def b1() -> nn.Module:
    """The MNIST network of Lin et al., table B1, as printed, with a 10-way last layer."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.Tanh(), nn.MaxPool2d(2, stride=1)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2, stride=1)),
        *(nn.Flatten(), nn.Linear(4608, 32), nn.Tanh(), nn.Linear(32, 10)),
    )


def papernot() -> nn.Module:
    """The MNIST network of Papernot et al."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.Tanh(), nn.MaxPool2d(2, stride=1)),
        *(nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, stride=1)),
        *(nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10)),
    )


def b2() -> nn.Module:
    """The CIFAR-10 network of Lin et al., table B2, after Papernot et al."""
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(after, after, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 128), nn.Tanh(), nn.Linear(128, 10))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 10))


class MeanOfWords(nn.Module):
    """The mean of the embeddings of a text, then two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10_000, 16)
        self.hidden, self.output = nn.Linear(16, 16), nn.Linear(16, 2)

    def forward(self, words: Tensor) -> Tensor:
        return self.output(torch.relu(self.hidden(self.embedding(words).mean(1))))


class NameClassifier(nn.Module):
    """Characters, one LSTM, and a linear layer on its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 64)
        self.recurrent = nn.LSTM(64, 128, batch_first=True)
        self.output = nn.Linear(128, 18)

    def forward(self, characters: Tensor) -> Tensor:
        return self.output(self.recurrent(self.embedding(characters))[0][:, -1])


class Block(nn.Module):
    """Attention and two linear layers, each after a normalisation and around a short cut."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_hidden = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.mixed = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.hidden, self.output = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, states: Tensor) -> Tensor:
        records, length, width = states.shape
        projected = self.queries_keys_values(self.before_attention(states))
        queries, keys, values = projected.reshape(records, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = torch.softmax(queries @ keys.transpose(-2, -1) / math.sqrt(width // self.heads), dim=-1)
        states = states + self.mixed((scores @ values).transpose(1, 2).reshape(records, length, width))
        return states + self.output(functional.gelu(self.hidden(self.before_hidden(states))))


class Transformer(nn.Module):
    """Four blocks of width 256 on a text of 128 words, and a linear layer on their mean. Positions are not learned."""

    def __init__(self, width: int = 256, length: int = 128):
        super().__init__()
        self.embedding = nn.Embedding(1_000, width)
        self.blocks = nn.Sequential(*(Block(width, heads=4) for _ in range(4)))
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, 2)
        angles = torch.arange(length)[:, None] / 10_000 ** (torch.arange(0, width, 2) / width)
        self.positions = torch.cat([angles.sin(), angles.cos()], dim=1)

    def forward(self, words: Tensor) -> Tensor:
        return self.output(self.norm(self.blocks(self.embedding(words) + self.positions)).mean(1))


class Residual(nn.Module):
    """Two convolutions, each after normalisation and ReLU, around a short cut."""

    def __init__(self, before: int, after: int, stride: int):
        super().__init__()
        self.first_norm, self.second_norm = nn.GroupNorm(16, before), nn.GroupNorm(16, after)
        self.first = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.short_cut = None if before == after else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, pixels: Tensor) -> Tensor:
        ready = functional.relu(self.first_norm(pixels))
        through = self.second(functional.relu(self.second_norm(self.first(ready))))
        return through + (pixels if self.short_cut is None else self.short_cut(ready))


def wrn() -> nn.Module:
    """WRN-16-4 of Zagoruyko and Komodakis, with GroupNorm in place of BatchNorm as De et al. train it."""
    blocks = [
        Residual(before, after, stride)
        for first, after, stride in ((16, 64, 1), (64, 128, 2), (128, 256, 2))
        for before, stride in ((first, stride), (after, 1))
    ]
    head = (nn.GroupNorm(16, 256), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), *blocks, *head)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("b1", b1, images(1, 28, 28), 10, batch=1024, parameters=152_618),
        Workload("papernot", papernot, images(1, 28, 28), 10, batch=1024, parameters=26_010),
        Workload("b2", b2, images(3, 32, 32), 10, batch=1024, parameters=550_570, micro_batch=256),
        Workload("mlp", mlp, images(784), 10, batch=512, parameters=1_796_010),
        Workload("imdb", MeanOfWords, tokens(10_000, 256), 2, batch=512, parameters=160_306),
        Workload("lstm", NameClassifier, tokens(256, 15), 18, batch=256, parameters=118_034),
        Workload("transformer", Transformer, tokens(1_000, 128), 2, batch=64, parameters=3_416_066),
        Workload("wrn", wrn, images(3, 32, 32), 10, batch=64, parameters=2_748_890),
    )
}
