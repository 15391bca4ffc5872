"""The repaired copy passes the check, keeps what it can of the weights, and the original is untouched."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from apportion.models.check import check
from apportion.models.fix import fix
from apportion.models.probe import probe_model


class Residual(nn.Module):
    """A block as in ResNet: two normalised convolutions and a shortcut."""

    def __init__(self, channels):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + x)


def residual_network():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), Residual(8), Residual(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    )


def test_a_residual_network_is_repaired_and_then_trains():
    torch.manual_seed(0)
    repaired = fix(residual_network())
    assert repaired.remaining == ()
    assert check(repaired.model).ok
    assert "1.bn1: BatchNorm2d(8) → GroupNorm(4, 8)" in repaired.changes
    assert "1.relu: ReLU(inplace=True) → ReLU(inplace=False)" in repaired.changes
    assert str(repaired) == "\n".join(repaired.changes)
    probe_model(repaired.model, torch.zeros(1, 8, 8))

    labels = torch.arange(16) % 2
    inputs = torch.randn(16, 1, 8, 8) + labels[:, None, None, None]
    optimizer = torch.optim.SGD(repaired.model.parameters(), lr=0.1)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(repaired.model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_the_original_is_untouched_bit_for_bit():
    model = nn.Sequential(residual_network(), nn.Dropout(inplace=True), nn.Linear(2, 2).half()).eval()
    model[0].train()
    before, text = copy.deepcopy(model.state_dict()), repr(model)
    modes = [module.training for module in model.modules()]
    fix(model)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(after[name].dtype == before[name].dtype and torch.equal(after[name], before[name]) for name in before)
    assert repr(model) == text
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize(
    ("channels", "groups"), [(64, 32), (48, 24), (100, 25), (128, 32), (7, 1), (6, 3), (2, 1), (1, 1)]
)
def test_groups_divide_the_channels_and_hold_at_least_two(channels, groups):
    norm = fix(nn.BatchNorm2d(channels)).model
    assert isinstance(norm, nn.GroupNorm)
    assert norm.num_groups == groups


@pytest.mark.parametrize("shape", [(6,), (6, 5)])
def test_batch_norm_1d_works_on_flat_and_on_long_records(shape):
    probe_model(fix(nn.BatchNorm1d(6)).model, torch.zeros(shape))


def test_one_flat_number_is_passed_on_as_it_is():
    repaired = fix(nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1)))
    assert isinstance(repaired.model[1], nn.Identity)
    assert repaired.changes[0].startswith("1: BatchNorm1d(1) → Identity()")
    probe_model(repaired.model, torch.zeros(3))


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm])
def test_weights_settings_and_mode_are_kept(norm):
    layer = norm(4, eps=0.1).double().eval()
    nn.init.uniform_(layer.weight)
    nn.init.uniform_(layer.bias)
    layer.bias.requires_grad_(False)
    substitute = fix(layer).model
    assert torch.equal(substitute.weight, layer.weight)
    assert torch.equal(substitute.bias, layer.bias)
    assert substitute.weight is not layer.weight
    assert substitute.weight.requires_grad
    assert not substitute.bias.requires_grad
    assert substitute.eps == 0.1
    assert not substitute.training


def test_a_norm_without_weights_stays_without():
    substitute = fix(nn.BatchNorm2d(4, affine=False)).model
    assert not substitute.affine
    assert substitute.weight is None
    assert list(substitute.parameters()) == []


def test_a_shared_layer_stays_shared():
    norm = nn.BatchNorm2d(4)
    model = nn.Sequential(nn.Sequential(nn.Conv2d(4, 4, 3), norm), nn.ModuleDict({"again": norm}))
    repaired = fix(model)
    assert repaired.model[0][1] is repaired.model[1]["again"]
    assert isinstance(repaired.model[0][1], nn.GroupNorm)
    assert repaired.changes == ("0.1, 1.again: BatchNorm2d(4) → GroupNorm(2, 4)",)


def test_instance_norm_stops_tracking():
    repaired = fix(nn.Sequential(nn.Conv2d(1, 2, 3), nn.InstanceNorm2d(2, affine=True, track_running_stats=True)))
    assert repaired.remaining == ()
    assert list(repaired.model[1].buffers()) == []
    probe_model(repaired.model, torch.zeros(1, 8, 8))
    assert set(repaired.model[1].state_dict()) == {"weight", "bias"}


def test_sparse_embeddings_become_dense():
    repaired = fix(nn.Embedding(5, 2, sparse=True))
    assert repaired.changes == ("(model): Embedding(sparse=True) → Embedding(sparse=False)",)
    repaired.model(torch.tensor([1])).sum().backward()
    assert not repaired.model.weight.grad.is_sparse


def test_float16_becomes_float32_with_the_same_values_and_ties():
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5), nn.Linear(5, 2).requires_grad_(False)).half()
    model[1].weight = model[0].weight
    model.register_buffer("scale", torch.ones(1).half())
    repaired = fix(model)
    assert repaired.remaining == ()
    assert {tensor.dtype for tensor in repaired.model.state_dict().values()} == {torch.float32}
    assert repaired.model[1].weight is repaired.model[0].weight
    assert torch.equal(repaired.model[0].weight, model[0].weight.float())
    assert "2: Linear in float16 → float32" in repaired.changes
    assert fix(nn.Linear(3, 2).double()).changes == ()


def test_what_cannot_be_repaired_is_listed():
    class Special(nn.BatchNorm2d):
        """May do more than normalise."""

    model = nn.Sequential(Special(4), nn.Embedding(5, 2, max_norm=1.0), nn.LazyLinear(2))
    repaired = fix(model)
    assert [layer.name for layer in repaired.remaining] == ["0", "1", "2"]
    assert repaired.changes == ()
    assert str(repaired).startswith("nothing to change\nleft: 0 (Special)")
