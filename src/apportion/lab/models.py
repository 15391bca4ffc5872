"""Small models for the data sets of the lab. None mixes records, so all can be trained privately."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from apportion import validate
from apportion.errors import InvalidArgument
from apportion.lab.data import DataSet


def linear(data: DataSet) -> nn.Module:
    """Softmax regression on the flattened input."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(data.shape), data.classes))


def mlp(data: DataSet, hidden: int = 64) -> nn.Module:
    """One hidden layer of tanh units: bounded activations keep the gradients of single records small."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(data.shape), hidden), nn.Tanh(), nn.Linear(hidden, data.classes)
    )


def cnn(data: DataSet) -> nn.Module:
    """Two convolutions with tanh and average pooling, for images of any size from 8 × 8."""
    return nn.Sequential(
        nn.Conv2d(data.shape[0], 16, 3, padding=1),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.Tanh(),
        nn.Linear(32, data.classes),
    )


class CharacterModel(nn.Module):
    """Embedding, one LSTM, and a linear layer on its last state."""

    def __init__(self, vocabulary: int, classes: int, hidden: int = 64):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 32)
        self.recurrent = nn.LSTM(32, hidden, batch_first=True)
        self.output = nn.Linear(hidden, classes)

    def forward(self, characters: Tensor) -> Tensor:
        states, _ = self.recurrent(self.embedding(characters))
        logits: Tensor = self.output(states[:, -1])
        return logits


class WordModel(nn.Module):
    """The mean of the word embeddings of a text, then one hidden layer. Padding (word 0) does not count."""

    def __init__(self, vocabulary: int, classes: int, width: int = 16):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.hidden = nn.Linear(width, width)
        self.output = nn.Linear(width, classes)

    def forward(self, words: Tensor) -> Tensor:
        present = (words != 0).unsqueeze(-1).to(self.embedding.weight.dtype)
        mean = (self.embedding(words) * present).sum(1) / present.sum(1).clamp(min=1)
        logits: Tensor = self.output(torch.tanh(self.hidden(mean)))
        return logits


def lstm(data: DataSet) -> nn.Module:
    """For texts as characters."""
    return CharacterModel(_vocabulary("lstm", data), data.classes)


def embedding(data: DataSet) -> nn.Module:
    """For texts as words."""
    return WordModel(_vocabulary("embedding", data), data.classes)


MODELS: dict[str, Callable[[DataSet], nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "cnn": cnn,
    "lstm": lstm,
    "embedding": embedding,
}


def build(name: str, data: DataSet) -> nn.Module:
    """The model with this name, for the inputs and classes of `data`."""
    model = MODELS[
        validate.known("model", name, MODELS, "there is no such model; module:function names one of your own")
    ]
    if name == "cnn" and data.kind != "image":
        raise InvalidArgument(
            "model", name, f"it needs images, and {data.name} holds {data.kind}", f"Try {default_name(data)!r}"
        )
    if name in ("linear", "mlp") and data.vocabulary is not None:
        raise InvalidArgument(
            "model", name, f"it needs numbers, and {data.name} holds text", f"Try {default_name(data)!r}"
        )
    return model(data)


def default_name(data: DataSet) -> str:
    """A sensible model for a kind of data."""
    if data.kind == "image":
        return "mlp" if math.prod(data.shape) <= 64 else "cnn"
    return {"table": "mlp", "characters": "lstm", "words": "embedding"}[data.kind]


def _vocabulary(model: str, data: DataSet) -> int:
    if data.vocabulary is None:
        raise InvalidArgument(
            "model", model, f"it needs text, and {data.name} holds {data.kind}", f"Try {default_name(data)!r}"
        )
    return data.vocabulary
