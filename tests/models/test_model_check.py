"""Each layer that cannot be trained privately is named, with its reason and its fix; sound layers pass."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from apportion.errors import UnsupportedModel
from apportion.models.check import check, copy_model


def problem_of(model: nn.Module) -> str:
    (layer,) = check(model).problems
    assert layer.problem is not None
    assert layer.remedy
    return layer.problem


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(3, 2),
        nn.Conv1d(2, 3, 3),
        nn.Conv2d(2, 3, 3),
        nn.Embedding(5, 2),
        nn.LayerNorm(4),
        nn.GroupNorm(2, 4),
        nn.InstanceNorm2d(4, affine=True),
        nn.LSTM(3, 2),
        nn.MultiheadAttention(4, 2),
        nn.TransformerEncoderLayer(4, 2, 8),
        nn.Sequential(nn.Linear(3, 2), nn.ReLU(inplace=True)),
        parametrizations.weight_norm(nn.Linear(3, 2)),
        parametrizations.orthogonal(nn.Linear(3, 2)),
        nn.Linear(3, 2).to(torch.bfloat16),
        nn.Linear(3, 2).double(),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_sound_layers_pass_and_every_parameter_is_counted(layer):
    result = check(layer)
    assert result.ok
    assert result.parameters == sum(parameter.numel() for parameter in layer.parameters())
    result.require()


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d(4),
        nn.BatchNorm2d(4),
        nn.BatchNorm3d(4),
        nn.SyncBatchNorm(4),
        nn.LazyBatchNorm1d(),
        nn.LazyBatchNorm2d(),
        nn.LazyBatchNorm3d(),
        nn.BatchNorm2d(4, affine=False, track_running_stats=False),
    ],
    ids=repr,
)
def test_batch_norm_is_refused_by_type(norm):
    (layer,) = check(nn.Sequential(nn.Linear(3, 4), norm)).problems
    assert layer.name == "1"
    assert layer.kind == type(norm).__name__
    assert "mixes records" in layer.problem
    assert "GroupNorm" in layer.remedy
    assert ("LayerNorm" in layer.remedy) == isinstance(norm, nn.BatchNorm1d)


def test_a_frozen_batch_norm_is_refused_too_because_train_would_wake_it():
    norm = nn.BatchNorm2d(4).eval().requires_grad_(False)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), norm)
    assert [layer.name for layer in check(model).problems] == ["1"]


def test_instance_norm_is_refused_only_while_it_tracks():
    assert "running statistics" in problem_of(nn.InstanceNorm2d(4, affine=True, track_running_stats=True))
    assert check(nn.InstanceNorm2d(4, affine=True)).ok


@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
def test_embeddings_that_rewrite_their_rows_or_have_sparse_gradients_are_refused(layer):
    assert "max_norm" in problem_of(layer(5, 2, max_norm=1.0))
    assert "sparse" in problem_of(layer(5, 2, sparse=True))


def test_spectral_norm_is_refused_on_the_layer_it_serves():
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(3, 2)))
    assert [layer.name for layer in check(model).layers] == ["0"]
    assert "power iteration" in problem_of(model)


def test_the_old_hooks_are_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        assert "power iteration" in problem_of(nn.utils.spectral_norm(nn.Linear(3, 2)))
        assert "cannot be copied" in problem_of(nn.utils.weight_norm(nn.Linear(3, 2)))


def test_lazy_parameters_need_a_shape_first():
    model = nn.Sequential(nn.LazyLinear(2))
    assert "no shape" in problem_of(model)
    model(torch.zeros(1, 3))
    assert check(model).ok


def test_a_model_with_nothing_to_train_is_refused():
    frozen = nn.Linear(3, 2).requires_grad_(False)
    (layer,) = check(nn.Sequential(frozen)).problems
    assert layer.name == "(model)"
    assert "no trainable parameter" in layer.problem
    assert "no trainable parameter" in problem_of(frozen)
    assert "no trainable parameter" in problem_of(nn.ReLU())


def test_dtypes_without_a_sound_gradient_are_refused():
    assert "float16" in problem_of(nn.Linear(3, 2).half())
    assert "complex64" in problem_of(nn.Linear(3, 2, dtype=torch.complex64))
    frozen_half = nn.Sequential(nn.Linear(3, 2).half().requires_grad_(False), nn.Linear(2, 2))
    assert check(frozen_half).ok


def test_weights_without_values_or_with_bad_values_are_refused():
    assert "meta" in problem_of(nn.Linear(3, 2, device="meta"))
    for bad in (float("nan"), float("inf")):
        model = nn.Linear(3, 2)
        with torch.no_grad():
            model.weight[0, 0] = bad
        assert "NaN or infinite" in problem_of(model)


def test_a_layer_with_two_problems_names_both():
    problem = problem_of(nn.Sequential(nn.BatchNorm1d(4).half()))
    assert "mixes records" in problem
    assert "float16" in problem


def test_frozen_and_tied_weights_are_counted_once_and_only_if_trained():
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False), nn.Linear(5, 2).requires_grad_(False))
    model[1].weight = model[0].weight
    result = check(model)
    assert result.parameters == 15
    assert [layer.trainable for layer in result.layers] == [True, True, False]
    assert [layer.parameters for layer in result.layers] == [15, 0, 0]


def test_one_error_names_every_layer_the_reason_and_the_fix():
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Embedding(5, 2, max_norm=1.0)
    )
    with pytest.raises(UnsupportedModel) as caught:
        check(model).require()
    message = str(caught.value)
    assert "1, 3 (BatchNorm2d)" in message
    assert message.count("whole batch") == 1
    assert "4 (Embedding)" in message
    assert "ap.fix(model)" in message
    assert "max_norm=None" in message
    assert "\n" not in message


def test_the_table_shows_every_layer_and_its_verdict():
    text = str(check(nn.Sequential(nn.Linear(1000, 2), nn.ReLU(), nn.BatchNorm1d(2))))
    header, linear, norm, total, reason = text.splitlines()
    assert header.split() == ["layer", "kind", "trained", "verdict"]
    assert linear.split() == ["0", "Linear", "2,002", "ok"]
    assert norm.split() == ["2", "BatchNorm1d", "4", "PROBLEM"]
    assert "1 of 2 layers" in total
    assert "mixes records" in reason


def test_a_model_that_cannot_be_copied_is_a_clear_error():
    with pytest.raises(UnsupportedModel, match="cannot be copied"):
        copy_model(nn.LazyBatchNorm2d())
