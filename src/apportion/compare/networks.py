"""Small models by name, for any data set. None mixes records, so all of them can be trained privately."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

from apportion import validate
from apportion.compare.spread import Spread
from apportion.data import DataSet
from apportion.errors import InvalidArgument

Activation = Callable[[], nn.Module]

ACTIVATIONS: dict[str, Activation] = {"relu": nn.ReLU, "tanh": nn.Tanh}
"""tanh is bounded, which keeps the gradients of single records small; plain DP-SGD was published with ReLU."""


def linear(data: DataSet) -> nn.Module:
    """Softmax regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(data.shape), data.classes))


def mlp(data: DataSet, activation: Activation, hidden: int = 64) -> nn.Module:
    """One hidden layer."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(data.shape), hidden), activation(), nn.Linear(hidden, data.classes)
    )


def additive(data: DataSet) -> nn.Module:
    """Softmax regression, from zero, on numbers that are spread over hat functions: a sum of a curve for each column."""
    spread = Spread(math.prod(data.shape), data.numbers)
    layer = nn.Linear(spread.width, data.classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), spread, layer)


def spread_mlp(data: DataSet, activation: Activation, hidden: int = 32) -> nn.Module:
    """One hidden layer on numbers that are spread over hat functions."""
    spread = Spread(math.prod(data.shape), data.numbers)
    layers = nn.Linear(spread.width, hidden), activation(), nn.Linear(hidden, data.classes)
    return nn.Sequential(nn.Flatten(), spread, *layers)


def cnn(data: DataSet, activation: Activation) -> nn.Module:
    """Two convolutions with average pooling, for images of any size from 8 × 8."""
    return nn.Sequential(
        *(nn.Conv2d(data.shape[0], 16, 3, padding=1), activation(), nn.AvgPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), activation(), nn.AdaptiveAvgPool2d(4)),
        *(nn.Flatten(), nn.Linear(32 * 4 * 4, 32), activation(), nn.Linear(32, data.classes)),
    )


class CharacterModel(nn.Module):
    """Embedding, one LSTM, and a linear layer on its state after the last character.

    Padding (character 0) behind it does not count: what an LSTM has read fades while it reads on. No value decides what is computed, so
    that records are proved to stay apart.
    """

    def __init__(self, vocabulary: int, classes: int, width: int = 32, hidden: int = 64):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.recurrent = nn.LSTM(width, hidden, batch_first=True)
        self.output = nn.Linear(hidden, classes)

    def forward(self, characters: Tensor) -> Tensor:
        states, _ = self.recurrent(self.embedding(characters))
        present = (characters != 0).to(states.dtype)
        last = present * (1 - functional.pad(present[:, 1:], (0, 1)))
        logits: Tensor = self.output((states * last.unsqueeze(-1)).sum(1))
        return logits


class WordModel(nn.Module):
    """The mean of the word embeddings of a text, then one hidden layer. Padding (word 0) does not count."""

    def __init__(self, vocabulary: int, classes: int, activation: Activation = nn.Tanh, width: int = 16):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.hidden = nn.Linear(width, width)
        self.activation = activation()
        self.output = nn.Linear(width, classes)

    def forward(self, words: Tensor) -> Tensor:
        present = (words != 0).unsqueeze(-1).to(self.embedding.weight.dtype)
        mean = (self.embedding(words) * present).sum(1) / present.sum(1).clamp(min=1)
        logits: Tensor = self.output(self.activation(self.hidden(mean)))
        return logits


def lstm(data: DataSet, width: int = 32, hidden: int = 64) -> nn.Module:
    """For texts as characters."""
    return CharacterModel(_vocabulary(data), data.classes, width, hidden)


def embedding(data: DataSet, activation: Activation) -> nn.Module:
    """For texts as words."""
    return WordModel(_vocabulary(data), data.classes, activation)


def _vocabulary(data: DataSet) -> int:
    assert data.vocabulary is not None  # every text has one; other data was refused by its kind
    return data.vocabulary


_HELD = {"image": "images", "table": "numbers", "characters": "text", "words": "text"}
_FITTING = {"images": ("images",), "numbers": ("images", "numbers"), "text": ("text",)}


@dataclass(frozen=True)
class Model:
    """A way to build a model for a data set.

    Args:
        build: build(data, activation), or build(data) if there is no activation.
        needs: what the inputs must be.
        activation: the one that is used by default; `None` for a model that has none to choose.
    """

    build: Callable[..., nn.Module]
    needs: Literal["images", "numbers", "text"]
    activation: str | None = "tanh"


MODELS: dict[str, Model] = {
    "linear": Model(linear, "numbers", None),
    "mlp": Model(mlp, "numbers"),
    "additive": Model(additive, "numbers", None),
    "spread-mlp": Model(spread_mlp, "numbers"),
    "cnn": Model(cnn, "images"),
    "lstm": Model(lstm, "text", None),
    "embedding": Model(embedding, "text"),
}
"""Every model by its name. Add your own with `MODELS["name"] = Model(...)`."""


def build(name: str, data: DataSet, activation: str | None = None) -> nn.Module:
    """The model with this name, for the inputs and classes of `data`.

    Args:
        activation: "relu" or "tanh"; by default the model's own.
    """
    reason = "there is no such model; module:function names one of your own"
    model = MODELS[validate.known("model", name, MODELS, reason)]
    held = _HELD[data.kind]
    if held not in _FITTING[model.needs]:
        reason = f"it needs {model.needs}, and {data.name} holds {held}"
        raise InvalidArgument("model", name, reason, f"Try {default_name(data)!r}")
    if model.activation is None:
        if activation is not None:
            raise InvalidArgument("activation", activation, f"{name} has none to choose", "Leave it out")
        return model.build(data)
    chosen = validate.known("activation", activation or model.activation, ACTIVATIONS)
    try:
        return model.build(data, ACTIVATIONS[chosen])
    except RuntimeError as error:  # of a layer whose window is larger than its input
        reason = f"its layers do not fit inputs of shape {data.shape} ({str(error).splitlines()[0]})"
        raise InvalidArgument("model", name, reason, f"Try {default_name(data)!r}") from error


def default_name(data: DataSet) -> str:
    """A sensible model for a kind of data."""
    if data.kind == "image":
        return "mlp" if math.prod(data.shape) <= 64 else "cnn"
    return {"table": "additive" if data.numbers else "mlp", "characters": "lstm", "words": "embedding"}[data.kind]
