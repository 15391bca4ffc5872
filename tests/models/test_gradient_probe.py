"""A model whose gradients never reach the records' own weights is refused before anything is charged."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from apportion.curator.gradients.engine import EngineChoice
from apportion.curator.gradients.reference import ReferenceGradients
from apportion.errors import UnsupportedModel
from apportion.models import gradient_probe
from apportion.models.gradient_probe import (
    AloneSummary,
    GradientProbe,
    require_live_gradients,
    summarise_gradients,
    summarise_rows,
)
from apportion.models.synthetic import prepare_model

LOSSES = pytest.mark.parametrize("loss", [None, cross_entropy], ids=["size of outputs", "loss"])


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 2)
        self.middle = nn.Sequential(nn.Linear(5, 5), nn.Tanh())
        self.reentrant = reentrant

    def forward(self, x):
        return self.last(checkpoint(self.middle, self.first(x), use_reentrant=self.reentrant))


class Behind(ReferenceGradients):
    """An engine that goes on with the weights it was made with."""

    def __init__(self, model, mode):
        super().__init__(copy.deepcopy(model), mode)


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x + torch.randn_like(x))


class PartlyUnused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x):
        return self.used(x)


def required(model, mode, loss=cross_entropy):
    torch.manual_seed(0)
    require_live_gradients(prepare_model(model), mode, loss, (torch.randn(3, 4), torch.tensor([0, 1, 0])))


@LOSSES
def test_reentrant_checkpointing_in_a_loop_is_refused_by_name(loss):
    with pytest.raises(UnsupportedModel, match=r"middle.0.weight, middle.0.bias.*noise alone.*use_reentrant=False"):
        required(Checkpointed(reentrant=True), "loop", loss)


@LOSSES
@pytest.mark.parametrize("reentrant", [False, True])
def test_the_one_pass_engine_is_exact_for_it(reentrant, loss):
    """Its layers note what they see when they are run again, with the weights of this step."""
    required(Checkpointed(reentrant=reentrant), "one-pass", loss)


@LOSSES
@pytest.mark.parametrize("mode", ["vmap", "loop"])
def test_weights_that_stay_behind_are_found(monkeypatch, mode, loss):
    monkeypatch.setattr(gradient_probe, "build_engine", Behind)
    with pytest.raises(UnsupportedModel, match=r"0.weight.*are not those of an ordinary backward pass"):
        required(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), mode, loss)


@LOSSES
@pytest.mark.parametrize("mode", ["one-pass", "one-pass, copying inputs", "vmap", "loop"])
@pytest.mark.parametrize(
    "model",
    [
        lambda: nn.Linear(4, 2),
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)),
        lambda: nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2), nn.Flatten()),
        PartlyUnused,
        Noisy,
    ],
    ids=["linear", "deep", "rounding alone", "partly unused", "noisy"],
)
def test_ordinary_models_pass(model, mode, loss):
    required(model(), mode, loss)


def test_the_model_is_left_as_it_was():
    torch.manual_seed(0)
    model = prepare_model(nn.Linear(4, 2))
    before, state = model.weight.detach().clone(), torch.get_rng_state()
    require_live_gradients(model, "one-pass", cross_entropy, (torch.ones(3, 4), torch.tensor([0, 1, 0])))
    assert torch.equal(model.weight, before)
    assert model.weight.grad is None
    assert torch.equal(torch.get_rng_state(), state)


class _Limit(torch.autograd.Function):
    """Limits the norm of the gradient of the whole micro-batch."""

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * (10 / gradient.norm()).clamp(max=1)


class LimitsGradients(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(_Limit.apply(self.first(x)))


def test_the_probe_alone_sees_a_limit_that_only_large_gradients_of_a_micro_batch_feel():
    torch.manual_seed(0)

    def small_loss(outputs, targets):
        return 0.01 * (outputs * targets).sum(1).mean()

    probe = GradientProbe(prepare_model(LimitsGradients()), small_loss, torch.zeros(4), torch.zeros(3))
    assert not probe.agrees(EngineChoice("one-pass"))
    without_limit = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    assert GradientProbe(prepare_model(without_limit), small_loss, torch.zeros(4), torch.zeros(3)).agrees(
        EngineChoice("one-pass")
    )


@pytest.mark.parametrize("places", [3, 4096])
@pytest.mark.parametrize("batch", [[1, 1, 0, 2, 1], [0, 1], [2]])
def test_what_records_give_together_follows_from_what_they_give_alone(batch, places, monkeypatch):
    monkeypatch.setattr(gradient_probe, "_SKETCHED", places)  # two numbers are left over of eight
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    rows = {"weight": draw(3, 4, 2), "bias": draw(3), "deep": draw(3, 10)}
    alone = AloneSummary((draw(3, 4), draw(3)), torch.float32, *summarise_rows(rows))
    pair, expected = alone.together(batch)
    assert torch.equal(pair[0], alone.pair[0][batch])
    found = summarise_gradients({name: row[batch] for name, row in rows.items()}, torch.float32)
    torch.testing.assert_close(found, expected)
    if places > 10:
        weights = torch.cos(3 * torch.arange(len(batch)) + 0.7)
        flat = [row[batch].reshape(len(batch), -1) for row in rows.values()]
        norms = torch.stack([row.norm(dim=1) for row in flat], dim=1)
        torch.testing.assert_close(found, torch.cat([norms.flatten(), *(weights @ row for row in flat)]))


def test_a_sketch_shows_whatever_the_numbers_show(monkeypatch):
    monkeypatch.setattr(gradient_probe, "_SKETCHED", 4)
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(0))
    numbers = draw(43)
    before = gradient_probe._sketch(numbers)
    assert len(before) == 4 + 3
    for place in range(43):
        other = numbers.clone()
        other[place] += 0.01
        assert 0.0099 < (gradient_probe._sketch(other) - before).abs().max() < 0.0201
    for first in range(10):  # in each other's place
        for second in range(first):
            other = numbers.clone()
            other[4 * first : 4 * first + 4] = numbers[4 * second : 4 * second + 4]
            other[4 * second : 4 * second + 4] = numbers[4 * first : 4 * first + 4]
            assert (gradient_probe._sketch(other) - before).abs().max() > 1e-3


class _Backwards(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return -gradient if len(gradient) == 5 else gradient


class NoNumbersBehindTheEnd(nn.Module):
    """Gradients of padded records are not numbers; those of others have the wrong sign in batches of five."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(_Backwards.apply(self.first(x))) * (1 + 0 * x[:, -1:].square().log())


def test_records_without_finite_gradients_hide_no_others():
    torch.manual_seed(0)

    def product(outputs, targets):
        return (outputs * targets).sum(1).mean()

    probe = GradientProbe(prepare_model(NoNumbersBehindTheEnd()), product, torch.zeros(4), torch.zeros(3))
    assert not all(probe._all.finite())
    assert not probe.agrees(EngineChoice("one-pass"))
