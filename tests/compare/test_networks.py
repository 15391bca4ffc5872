import pytest
import torch

import apportion as ap
from apportion.budget import Public
from apportion.compare import networks
from apportion.compare.processes import process_pool
from apportion.data import DataSet

SHAPES = {"image": (3, 12, 12), "table": (7,), "characters": (9,), "words": (11,)}


def data_of(kind):
    text = kind in ("characters", "words")
    inputs = torch.randint(0, 20, (5, *SHAPES[kind])) if text else torch.rand(5, *SHAPES[kind])
    pair = (inputs, torch.zeros(5, dtype=torch.long))
    return DataSet("made-up", pair, Public(pair), 4, SHAPES[kind], 5, kind, vocabulary=20 if text else None)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("linear", "image"),
        ("mlp", "image"),
        ("cnn", "image"),
        ("linear", "table"),
        ("mlp", "table"),
        ("additive", "table"),
        ("spread-mlp", "table"),
        ("lstm", "characters"),
        ("embedding", "words"),
    ],
)
def test_models_fit_their_data_and_can_be_trained_privately(name, kind):
    data = data_of(kind)
    model = networks.build(name, data)
    assert model(data.train[0]).shape == (5, 4)
    assert ap.check(model).ok


@pytest.mark.parametrize(("name", "kind"), [("lstm", "characters"), ("embedding", "words")])
def test_padding_behind_a_text_changes_nothing(name, kind):
    model = networks.build(name, data_of(kind))
    text = torch.tensor([[3, 1, 2, 2], [1, 3, 0, 0]])
    longer = torch.cat([text, torch.zeros(2, 5, dtype=torch.int64)], 1)
    torch.testing.assert_close(model(longer), model(text))
    assert not torch.allclose(model(text.roll(1, 0)), model(text))


@pytest.mark.parametrize("kind", SHAPES)
def test_every_kind_of_data_has_a_default(kind):
    data = data_of(kind)
    assert networks.build(networks.default_name(data), data)(data.train[0]).shape == (5, 4)


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("cnn", "table", "needs images.*Try 'mlp'"),
        ("mlp", "words", "holds text.*Try 'embedding'"),
        ("lstm", "image", "needs text.*Try 'cnn'"),
        ("cn", "image", "Did you mean 'cnn'"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(name, kind, words):
    with pytest.raises(ap.InvalidArgument, match=words):
        networks.build(name, data_of(kind))


@pytest.mark.parametrize(
    ("name", "activation", "words"),
    [
        ("cnn", "rel", "activation='rel'.*Did you mean 'relu'"),
        ("linear", "relu", "activation='relu': linear has none to choose"),
    ],
)
def test_an_activation_that_does_not_fit_is_refused(name, activation, words):
    with pytest.raises(ap.InvalidArgument, match=words):
        networks.build(name, data_of("image"), activation)


def test_padding_does_not_count_in_the_mean_of_words():
    model = networks.WordModel(20, 3)
    short, padded = torch.tensor([[4, 7]]), torch.tensor([[4, 7, 0, 0, 0]])
    torch.testing.assert_close(model(short), model(padded))


def test_other_processes_know_the_models_that_were_added_here(monkeypatch):
    monkeypatch.setitem(networks.MODELS, "my-own", networks.Model(networks.linear, "numbers", None))
    with process_pool(1) as pool:
        assert pool.submit(networks.build, "my-own", data_of("table")).result(timeout=120)
