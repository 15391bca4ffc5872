"""What is chosen for a table, from its schema, its declared population and ε."""

import math

import pytest
import torch

import apportion as ap
from apportion.compare import networks
from apportion.compare.defaults import explain_choices, with_features, with_training_defaults
from apportion.compare.spread import KNOTS, Spread, spread_width
from apportion.compare.table_defaults import is_tabular, table_model, table_rate, table_recipe
from apportion.data import DataSet

CLASSES = {
    "age": {"range": [18, 90], "missing": True},
    "sex": {"categories": ["M", "F"]},
    "ill": {"categories": [0, 1]},
}
NUMBER = CLASSES | {"cost": {"range": [0, 10]}}


def table(columns=CLASSES, target="ill", **more):
    return {
        "data": "t.csv",
        "table": {"target": target, "schema": {"columns": columns}},
        "recipe": [{"name": "default"}],
    } | more


def test_spread_numbers_are_any_curve_that_is_straight_between_the_knots():
    inputs = torch.rand(200, 3)
    spread = Spread(3, [1])(inputs)
    assert spread.shape == (200, spread_width(3, 1)) == (200, 11)
    hats = spread[:, 1 : 1 + KNOTS]
    assert torch.allclose(hats.sum(1), torch.ones(200))
    assert ((hats > 0).sum(1) <= 2).all()
    torch.testing.assert_close(hats @ torch.linspace(0, 1, KNOTS), inputs[:, 1])
    torch.testing.assert_close(spread[:, 0], 2 * inputs[:, 1] - 1)
    torch.testing.assert_close(spread[:, -2:], inputs[:, [0, 2]])
    assert torch.equal(Spread(3, [])(inputs), inputs)


@pytest.mark.parametrize("name", ["additive", "spread-mlp"])
def test_models_of_spread_numbers_can_be_trained_privately(name):
    pair = torch.rand(5, 4), torch.zeros(5, dtype=torch.long)
    model = networks.build(name, DataSet("made-up", pair, ap.Public(pair), 3, (4,), 5, "table", numbers=(0, 2)))
    assert model(pair[0]).shape == (5, 3)
    found = ap.check(model)
    assert found.ok
    layers = sum(parameter.numel() for parameter in model.parameters())
    assert layers == {"additive": 21 * 3, "spread-mlp": 21 * 32 + 33 * 3}[name]
    if name == "additive":
        assert not model(pair[0]).any()  # it begins at zero


def test_an_encoding_knows_its_numbers():
    encoding = ap.tables.Encoding(ap.tables.Schema(NUMBER), target="ill")
    assert encoding.numbers == (0, 4)  # between them: whether age is missing, and two sexes
    adult = with_training_defaults({"data": "adult", "epsilon": 1.0, "recipe": []})
    assert adult["model"] == "spread-mlp"


def test_a_hidden_layer_needs_enough_records():
    few, many = table(population=4_000, epsilon=2.0), table(population=5_000, epsilon=2.0)
    assert table_model(few)[0] == "additive"
    assert table_model(many)[0] == "spread-mlp"
    assert table_model(table())[0] == "additive"  # nothing is known
    assert table_model(few | {"activation": "relu"})[0] == "spread-mlp"
    assert table_model(table(NUMBER, "cost", population=10**6, epsilon=8.0))[0] == "additive"


@pytest.mark.parametrize(
    ("said", "path"),
    [
        (
            {"population": 400, "epsilon": 0.5},
            200 * math.sqrt(2 / 13),
        ),  # 9 of age, 1 whether it is missing, 2 of sex, and 1
        ({"population": 4_000, "epsilon": 2.0}, 1_000),
        ({"population": 5_000, "epsilon": 2.0}, 5_000 * math.sqrt(2 / 13)),
        ({"population": 400, "epsilon": 0.5, "model": "mlp"}, 100 * math.sqrt(2 / 5)),
        ({"population": 400, "epsilon": 0.5, "model": "linear"}, 200 * math.sqrt(2 / 5)),
        ({"population": 10**6, "epsilon": 8.0}, 2_000),
        ({}, 100),
        ({"population": 400, "epsilon": "x"}, 100),  # which is refused later, in words
    ],
)
def test_weights_move_as_far_as_noise_allows(said, path):
    assert table_rate(table(**said)) == pytest.approx(min(path, 2_000) / 200, rel=0.05)


def test_fewer_steps_are_longer_up_to_a_limit():
    said = table(population=400, epsilon=0.5)
    usual = table_rate(said)
    assert table_rate(said | {"steps": 100}) == pytest.approx(2 * usual, rel=0.05)
    assert table_rate(said | {"epochs": 20}) == pytest.approx(2 * usual, rel=0.05)
    assert table_rate(said | {"epochs": 20, "batch_size": 40}) == usual
    assert table_rate(said | {"steps": 1}) == 5.0


def test_a_number_is_predicted_with_smaller_steps_and_thresholds():
    said = table(NUMBER, "cost", population=10**5, epsilon=1.0)
    assert table_rate(said) == 0.05
    assert table_recipe(said)["clip"] == {"start": 0.3, "ratio": 1.0}
    assert table_recipe(table())["clip"] == {"start": 1.0, "ratio": 1.0}


def test_what_was_chosen_is_said_and_what_was_said_is_kept():
    said = table(population=400, epsilon=0.5)
    filled = with_training_defaults(with_features(said))
    assert (filled["model"], filled["sample_rate"], filled["steps"]) == ("additive", 0.2, 200)
    assert filled["recipe"][0]["update"] == {"average": 0.95, "divide_by_clip": True}
    model, rate = explain_choices(said, filled)
    assert model.startswith("model additive: one layer on columns")
    assert rate.startswith("sample_rate 0.2, steps 200, lr 0.39: weights move by population·ε·√(outputs/inputs)")
    own = {"model": "mlp", "sample_rate": 0.5, "steps": 7, "lr": 0.3}
    kept = with_training_defaults(said | own | {"recipe": [{"name": "abadi"}]})
    assert {name: kept[name] for name in own} == own
    assert kept["recipe"] == [{"name": "abadi"}]
    assert explain_choices(said | own, kept) == []
    plain = with_training_defaults(said | {"recipe": [{"name": "non-private"}]})["recipe"]
    assert plain == [{"name": "non-private", "optimizer": "adam", "lr": 0.01}]


def test_tables_are_known_by_their_file_or_their_kind():
    assert is_tabular({"data": "adult"})
    assert is_tabular({"data": "t.parquet"})
    assert not is_tabular({"data": "imdb"})
    assert with_training_defaults({"data": "t.csv", "recipe": []})["steps"] == 200  # a plan needs no schema


def test_texts_train_on_their_words():
    said = {"data": "imdb", "epsilon": 1.0, "population": 25_000, "recipe": [{"name": "default"}]}
    filled = with_training_defaults(with_features(said))
    assert (filled["features"], filled["lr"], filled.get("model")) == ("words", 0.27, None)
    first, second = explain_choices(said, filled)
    assert first.startswith("features words: one layer on which words a text has")
    assert "tested on IMDB" in second
    for other in ({"model": "embedding"}, {"features": "none"}, {"recipe": [{"name": "abadi"}]}):
        assert with_training_defaults(with_features(said | other)).get("features") is None
