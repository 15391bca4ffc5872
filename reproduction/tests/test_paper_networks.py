import pytest
import torch
from torch import nn

import apportion as ap
import reproduction.networks  # noqa: F401  registers the networks of the papers
from apportion.budget import Public
from apportion.compare import networks as models
from apportion.data import DataSet
from apportion.models.probe import probe_model
from reproduction.networks import PAPER_MODELS


def data_of(kind, shape, classes=4, vocabulary=20):
    text = kind in ("characters", "words")
    inputs = torch.randint(0, vocabulary, (5, *shape)) if text else torch.rand(5, *shape)
    pair = (inputs, torch.zeros(5, dtype=torch.long))
    return DataSet("made-up", pair, Public(pair), classes, shape, 5, kind, vocabulary=vocabulary if text else None)


MNIST = data_of("image", (1, 28, 28), 10)
CIFAR = data_of("image", (3, 32, 32), 10)
PHOTOGRAPHS = data_of("image", (3, 64, 64), 10)
PUBLISHED = {
    "papernot-cnn": (MNIST, 26_010),
    "du-cnn": (MNIST, 26_010),
    "lin-b1": (MNIST, 152_618),
    "lin-b2": (CIFAR, 550_570),
    "lin-b3": (MNIST, 281_034),
    "lin-b4": (CIFAR, 176_938),
    "alexnet": (PHOTOGRAPHS, 57_044_810),
    "resnet18": (PHOTOGRAPHS, 11_172_042),
    "adadp-mlp": (MNIST, 784 * 512 + 512 * 512 + 512 * 10),
    "imdb-mlp": (data_of("words", (256,), 2, 10_000), 10_000 * 16 + 16 * 17 + 2 * 17),
    "name-lstm": (data_of("characters", (20,), 18, 93), 93 * 64 + 4 * 128 * (64 + 128 + 2) + 18 * 129),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_networks_of_the_papers_have_their_number_of_parameters(name):
    data, parameters = PUBLISHED[name]
    model = models.build(name, data)
    found = ap.check(model)
    assert found.ok
    assert found.parameters == parameters
    with torch.no_grad():
        assert model(data.train[0][:2]).shape == (2, data.classes)
    probe_model(model, data.train[0][0])


def test_every_model_is_tested():
    assert set(PAPER_MODELS) == set(PUBLISHED)
    assert models.MODELS.items() >= PAPER_MODELS.items()


def activations_of(model):
    return [type(layer) for layer in model.modules() if isinstance(layer, (nn.Tanh, nn.ReLU))]


@pytest.mark.parametrize("name", [name for name, model in PAPER_MODELS.items() if model.activation])
def test_the_activation_is_an_argument(name):
    data, parameters = PUBLISHED[name]
    own = models.ACTIVATIONS[models.MODELS[name].activation]
    for activation, kind in (("relu", nn.ReLU), ("tanh", nn.Tanh), (None, own)):
        model = models.build(name, data, activation)
        assert set(activations_of(model)) == {kind}
        assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_networks_of_lin_are_tanh_unless_somebody_says():
    for name in ("papernot-cnn", "lin-b1", "lin-b2", "lin-b3", "lin-b4", "resnet18", "alexnet"):
        assert models.MODELS[name].activation == "tanh"
    assert models.MODELS["du-cnn"].activation == models.MODELS["adadp-mlp"].activation == "relu"


def test_residual_blocks_have_a_short_cut():
    model = models.build("resnet18", data_of("image", (3, 32, 32)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "first" in name or "second" in name:
                parameter.zero_()
    images = torch.rand(2, 3, 32, 32)
    assert not torch.equal(*model(images))  # only the short cuts are left, and images still differ


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("papernot-cnn", data_of("words", (11,), 4, 20), "needs images.*Try 'embedding'"),
        ("lin-b3", data_of("image", (3, 12, 12)), r"do not fit inputs of shape \(3, 12, 12\).*Try 'cnn'"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(name, data, words):
    with pytest.raises(ap.InvalidArgument, match=words):
        models.build(name, data)


def test_an_activation_that_does_not_fit_is_refused():
    with pytest.raises(ap.InvalidArgument, match="has none to choose"):
        models.build("name-lstm", data_of("characters", (9,)), "tanh")
