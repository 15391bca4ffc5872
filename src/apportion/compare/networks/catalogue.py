"""Every model by its name: what it needs, its activation, and how it is built."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import nn

from apportion import validate
from apportion.compare.networks import cnn, dense, sequences
from apportion.compare.networks.activations import ACTIVATIONS
from apportion.data import DataSet
from apportion.errors import InvalidArgument

_HELD = {"image": "images", "table": "numbers", "characters": "text", "words": "text"}
_FITTING = {"images": ("images",), "numbers": ("images", "numbers"), "text": ("text",)}


@dataclass(frozen=True)
class Model:
    """A way to build a model for a data set.

    Args:
        build: build(data, activation), or build(data) if there is no activation.
        needs: what the inputs must be.
        activation: the one that is used if nobody says; `None` for a model that has none to choose.
    """

    build: Callable[..., nn.Module]
    needs: Literal["images", "numbers", "text"]
    activation: str | None = "tanh"


MODELS: dict[str, Model] = {
    "linear": Model(dense.linear, "numbers", None),
    "mlp": Model(dense.mlp, "numbers"),
    "cnn": Model(cnn.cnn, "images"),
    "lstm": Model(sequences.lstm, "text", None),
    "embedding": Model(sequences.embedding, "text"),
}


def build(name: str, data: DataSet, activation: str | None = None) -> nn.Module:
    """The model with this name, for the inputs and classes of `data`.

    Args:
        activation: "relu" or "tanh"; by default the model's own. In the tables of Lin et al. the column `abadi` has ReLU and every
            other one tanh.
    """
    reason = "there is no such model; module:function names one of your own"
    model = MODELS[validate.known("model", name, MODELS, reason)]
    held = _HELD[data.kind]
    if held not in _FITTING[model.needs]:
        raise InvalidArgument(
            "model", name, f"it needs {model.needs}, and {data.name} holds {held}", f"Try {default_name(data)!r}"
        )
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
    return {"table": "mlp", "characters": "lstm", "words": "embedding"}[data.kind]
