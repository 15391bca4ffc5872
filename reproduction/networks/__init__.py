"""The networks of the papers. Importing this package adds them, by name, to those that `apportion` can build."""

from __future__ import annotations

from apportion.compare.networks import MODELS
from apportion.compare.networks.catalogue import Model
from apportion.compare.networks.dense import adadp_mlp
from apportion.compare.networks.sequences import embedding, name_lstm
from reproduction.networks import alexnet, du_networks, lin_networks, resnet

PAPER_MODELS: dict[str, Model] = {
    "papernot-cnn": Model(lin_networks.papernot, "images"),
    "lin-b1": Model(lin_networks.b1, "images"),
    "lin-b2": Model(lin_networks.b2, "images"),
    "lin-b3": Model(lin_networks.b3, "images"),
    "lin-b4": Model(lin_networks.b4, "images"),
    "alexnet": Model(alexnet.alexnet, "images"),
    "resnet18": Model(resnet.resnet18, "images"),
    "du-cnn": Model(du_networks.cnn, "images", "relu"),
    "imdb-mlp": Model(embedding, "text", "relu"),
    "name-lstm": Model(name_lstm, "text", None),
    "adadp-mlp": Model(adadp_mlp, "numbers", "relu"),
}
MODELS.update(PAPER_MODELS)
