"""Per-record gradients against a loop of single-record backward passes, in float64."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from apportion.curator.gradients.model_walk import trained_parameters
from apportion.curator.gradients.reference import ReferenceGradients
from apportion.curator.tree import call_model, map_tensors
from apportion.errors import WrongOrder

BATCH = 4


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent, self.output = nn.LSTM(5, 7, batch_first=True), nn.Linear(7, 3)

    def forward(self, x):
        return self.output(self.recurrent(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.output = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.output(self.attention(x, x, x)[0].mean(1))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.output = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.output(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Reused(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.output = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.output(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.output = nn.Linear(5, 5), nn.Linear(5, 3)
        self.first.requires_grad_(False)

    def forward(self, x):
        return self.output(torch.tanh(self.first(x)))


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.output, self.spare = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x):
        return self.output(x)


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.output = nn.Embedding(11, 4), nn.Linear(9, 3)

    def forward(self, ids, features):
        return self.output(torch.cat([self.words(ids).mean(1), features], 1))


def images(channels=2):
    return torch.randn(BATCH, channels, 6, 6)


CASES = {
    "linear": (lambda: nn.Linear(5, 3), lambda: torch.randn(BATCH, 5)),
    "linear over a sequence": (
        lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3)),
        lambda: torch.randn(BATCH, 6, 5),
    ),
    "conv1d": (
        lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(12, 3)),
        lambda: torch.randn(BATCH, 2, 6),
    ),
    "conv2d": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)
        ),
        images,
    ),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(9, 3, padding_idx=0), nn.Flatten(), nn.Linear(18, 3)),
        lambda: torch.randint(0, 9, (BATCH, 6)),
    ),
    "layer norm": (lambda: nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 3)), lambda: torch.randn(BATCH, 5)),
    "group norm": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 3)),
        images,
    ),
    "lstm": (Recurrent, lambda: torch.randn(BATCH, 6, 5)),
    "attention": (Attention, lambda: torch.randn(BATCH, 6, 8)),
    "tied weights": (Tied, lambda: torch.randn(BATCH, 5)),
    "re-used module": (Reused, lambda: torch.randn(BATCH, 5)),
    "frozen layer": (Frozen, lambda: torch.randn(BATCH, 5)),
    "unused layer": (Unused, lambda: torch.randn(BATCH, 5)),
    "tuple inputs": (TwoInputs, lambda: (torch.randint(0, 11, (BATCH, 6)), torch.randn(BATCH, 5))),
    "dict inputs": (TwoInputs, lambda: {"features": torch.randn(BATCH, 5), "ids": torch.randint(0, 11, (BATCH, 6))}),
}
MODES = {name: ("loop",) if name == "lstm" else ("vmap", "loop") for name in CASES}


def double(tree):
    return map_tensors(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, tree)


def one_by_one(model, loss_fn, inputs, targets):
    """The oracle: a batch of one, an ordinary backward pass, again for the next record."""
    rows = {name: [] for name in trained_parameters(model)}
    for i in range(BATCH):
        model.zero_grad()
        output = call_model(model, map_tensors(lambda tensor, i=i: tensor[i : i + 1], inputs))
        loss_fn(output, targets[i : i + 1]).backward()
        for name, parameter in trained_parameters(model).items():
            rows[name].append(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone())
    model.zero_grad()
    return {name: torch.stack(parts) for name, parts in rows.items()}


@pytest.mark.parametrize(("case", "mode"), [(case, mode) for case in CASES for mode in MODES[case]])
def test_rows_equal_single_record_backward(case, mode):
    torch.manual_seed(0)
    build, make_inputs = CASES[case]
    model, inputs, targets = build().double(), double(make_inputs()), torch.randint(0, 3, (BATCH,))
    engine = ReferenceGradients(model, mode)
    engine.record_losses(cross_entropy, engine.forward(inputs), targets).sum().backward()
    rows, expected = engine.gradients(), one_by_one(model, cross_entropy, inputs, targets)
    assert rows.keys() == expected.keys()
    for name, row in rows.items():
        torch.testing.assert_close(row, expected[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_reduction_of_the_loss_does_not_matter(reduction):
    torch.manual_seed(0)
    model, inputs, targets = nn.Linear(5, 1).double(), torch.randn(BATCH, 5).double(), torch.randn(BATCH, 1).double()
    engine = ReferenceGradients(model, "vmap")
    losses = engine.record_losses(
        lambda output, target: mse_loss(output, target, reduction=reduction), engine.forward(inputs), targets
    )
    losses.sum().backward()
    torch.testing.assert_close(engine.gradients()["weight"], one_by_one(model, mse_loss, inputs, targets)["weight"])


def test_parameters_keep_their_own_gradient_free():
    model = nn.Linear(5, 3)
    engine = ReferenceGradients(model, "vmap")
    engine.record_losses(
        cross_entropy, engine.forward(torch.randn(BATCH, 5)), torch.zeros(BATCH).long()
    ).sum().backward()
    engine.gradients()
    assert model.weight.grad is None


def test_rows_can_be_fetched_once():
    engine = ReferenceGradients(nn.Linear(5, 3), "vmap")
    engine.forward(torch.randn(BATCH, 5)).sum().backward()
    engine.gradients()
    with pytest.raises(WrongOrder, match="no forward pass"):
        engine.gradients()
