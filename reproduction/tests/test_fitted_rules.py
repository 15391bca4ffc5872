"""The rules of `apportion train` follow from the kept simulations."""

import json
import math

import numpy as np
import pytest
import torch

from apportion.compare import table_defaults
from reproduction.rules import simulation, tables, texts

ROWS = json.loads(tables.KEPT.read_text(encoding="utf-8"))


def lost(rows, share, most):
    return [tables.losses(row, tables.path_of(row, share, most)) for row in rows]


@pytest.mark.parametrize(
    ("fits", "share", "most", "average"),
    [
        (lambda row: row["model"] == "additive" and row["outputs"] > 1, *table_defaults._LAYER, 0.35),
        (lambda row: row["model"] == "spread-mlp", *table_defaults._NETWORK, 0.35),
        (lambda row: row["outputs"] == 1, *table_defaults._NUMBER, 10),
    ],
)
def test_no_other_share_of_the_path_loses_less(fits, share, most, average):
    rows = [row for row in ROWS if fits(row)]
    assert len(rows) >= 4
    ours = np.mean(lost(rows, share, most))
    assert ours < average
    assert np.mean(lost(rows, share / 4, most)) > ours
    assert np.mean(lost(rows, share * 4, most)) >= ours  # where the longest path holds, a larger share changes nothing


def test_a_hidden_layer_wins_where_the_rule_has_one():
    best = {(row["table"], row["records"], row["epsilon"], row["model"]): max(row["scores"].values()) for row in ROWS}
    gains = {
        key[:3]: 100 * (score - best[*key[:3], "additive"]) for key, score in best.items() if key[3] == "spread-mlp"
    }
    many = [gain for (_, records, epsilon), gain in gains.items() if records * epsilon >= table_defaults._NETWORK_FROM]
    assert min(many) > -0.5
    assert max(many) > 5
    plain = [100 * (score - best[*key[:3], "additive"]) for key, score in best.items() if key[3] == "linear"]
    assert np.mean(plain) < -1


def test_words_move_as_far_as_features_of_images():
    for row in json.loads(texts.KEPT.read_text(encoding="utf-8")):
        if (row["inputs"], row["threshold"]) == ("words", 0.1):
            assert 100 * (max(row["scores"].values()) - row["scores"]["0.3"]) < 0.5


@pytest.mark.parametrize("hidden", [False, True])
def test_norms_in_closed_form_are_those_of_autograd(hidden):
    """With a threshold below all norms every gradient has that length: the sum of one record shows it, with its direction."""
    torch.manual_seed(0)
    inputs, goals = simulation._with_one(torch.rand(1, 4)), torch.tensor([[0.0, 1.0, 0.0]])
    weights = [torch.randn(5, 6), torch.randn(7, 3)] if hidden else [torch.randn(5, 3)]
    found = simulation._clipped_sums(weights, inputs, inputs.pow(2).sum(1), goals, 1e-3, 3)
    tracked = [one.clone().requires_grad_() for one in weights]
    last = simulation._with_one(torch.tanh(inputs @ tracked[0])) if hidden else inputs
    torch.nn.functional.cross_entropy(last @ tracked[-1], goals.argmax(1)).backward()
    norm = math.sqrt(sum(float(one.grad.pow(2).sum()) for one in tracked))
    for sums, one in zip(found, tracked, strict=True):
        torch.testing.assert_close(sums, one.grad * 1e-3 / norm)
