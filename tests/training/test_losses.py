"""Losses by name: what they compute, that records stay apart, and what is refused before anything is charged."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import apportion as ap
from apportion.curator.gradients.losses import by_record, record_losses
from apportion.curator.gradients.module_state import StatelessLoss
from apportion.errors import InvalidArgument
from apportion.training.named_losses import LOSSES, as_loss, mean_loss

torch.manual_seed(0)
LOGITS, NUMBERS = torch.randn(6, 3), torch.randn(6)
CLASSES, LABELS = torch.tensor([0, 1, 2, 2, 1, 0]), (torch.randn(6, 3) > 0).float()
BY_HAND = {
    "cross-entropy": (LOGITS, CLASSES, lambda o, t: -(o[int(t)] - o.logsumexp(0))),
    "bce": (LOGITS, LABELS, lambda o, t: -(t * o.sigmoid().log() + (1 - t) * (1 - o.sigmoid()).log()).mean()),
    "mse": (LOGITS, LABELS, lambda o, t: ((o - t) ** 2).mean()),
    "huber": (
        3 * LOGITS,
        LABELS,
        lambda o, t: torch.where((o - t).abs() < 1, (o - t) ** 2 / 2, (o - t).abs() - 0.5).mean(),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_each_record_has_the_loss_of_the_formula(name):
    outputs, targets, by_hand = BY_HAND[name]
    expected = torch.stack([by_hand(output, target) for output, target in zip(outputs, targets, strict=True)])
    torch.testing.assert_close(ap.Loss(name)(outputs, targets), expected)
    for together in (True, False):
        torch.testing.assert_close(record_losses(ap.Loss(name), outputs, targets, together=together), expected)


@pytest.mark.parametrize("name", LOSSES)
def test_no_record_changes_the_loss_of_another(name):
    outputs, targets, _ = BY_HAND[name]
    before, moved = ap.Loss(name)(outputs, targets), outputs.clone()
    moved[0] = math.nan
    assert torch.equal(ap.Loss(name)(moved, targets)[1:], before[1:])


@pytest.mark.parametrize(("name", "targets"), [("mse", NUMBERS), ("huber", NUMBERS), ("bce", (NUMBERS > 0).long())])
@pytest.mark.parametrize("outputs", [LOGITS[:, 0], LOGITS[:, :1]], ids=["(N,)", "(N, 1)"])
@pytest.mark.parametrize("column", [False, True], ids=["targets (N,)", "targets (N, 1)"])
def test_one_output_meets_one_target_and_never_all_of_them(name, targets, outputs, column):
    loss = ap.Loss(name)(outputs, targets.unsqueeze(1) if column else targets)
    assert loss.shape == (6,)
    one = ap.Loss(name)(outputs[2:3], targets[2:3])
    torch.testing.assert_close(loss[2:3], one)


@pytest.mark.parametrize("name", ["bce", "mse", "huber"])
def test_other_shapes_are_refused(name):
    for outputs, targets in ((LOGITS, NUMBERS), (NUMBERS, LABELS), (LOGITS[:, :1], LABELS)):
        with pytest.raises(InvalidArgument, match="as many targets as the model has outputs"):
            ap.Loss(name)(outputs, targets)


def test_weights_are_those_of_the_own_class_and_none_is_above_one():
    plain = ap.Loss("cross-entropy")(LOGITS, CLASSES)
    weighted = ap.Loss("cross-entropy", weights=[1, 2, 4])(LOGITS, CLASSES)
    torch.testing.assert_close(weighted, plain * torch.tensor([0.25, 0.5, 1.0])[CLASSES])
    plain, weighted = (ap.Loss("bce", weights=weights)(LOGITS, LABELS[:, :3]) for weights in (None, (1.0, 5.0)))
    each = functional.binary_cross_entropy_with_logits(LOGITS, LABELS, reduction="none")
    torch.testing.assert_close(weighted, (each * torch.where(LABELS > 0, 1.0, 0.2)).mean(1))
    assert bool((weighted <= plain).all())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"name": "mze"}, "Did you mean 'mse'"),
        ({"name": "mse", "weights": [1, 2]}, "mse is about numbers"),
        ({"name": "bce", "weights": [1, 2, 3]}, "two classes"),
        ({"name": "cross-entropy", "weights": [1, 0]}, "loss.weights=0"),
        ({"name": "cross-entropy", "weights": [1, math.inf]}, "loss.weights=inf"),
        ({"name": "cross-entropy", "weights": "12"}, "not a list of numbers"),
        ({"name": "cross-entropy", "weights": 3}, "not a list of numbers"),
    ],
)
def test_settings_that_cannot_be_right(settings, reason):
    with pytest.raises(InvalidArgument, match=reason):
        ap.Loss(**settings)


@pytest.mark.parametrize(
    ("loss", "outputs", "targets", "reason"),
    [
        ("cross-entropy", 1, CLASSES, "Use the loss bce"),
        (ap.Loss("cross-entropy", weights=[1, 2]), 3, CLASSES, "the model has 3 classes"),
        ("mse", 3, NUMBERS, "as many targets"),
        ("bce", 2, LABELS, "as many targets"),
    ],
)
def test_a_loss_that_does_not_fit_the_model_is_refused_before_anything_is_charged(
    loss, outputs, targets, reason, budget, tmp_path
):
    plan = ap.plan("abadi", budget=budget, population=6, sample_rate=0.5, steps=2)
    data, storage = (torch.randn(6, 4), targets), ap.Storage(tmp_path / "run")
    with pytest.raises(ap.ApportionError, match=reason):
        ap.train(nn.Linear(4, outputs), loss, data, plan, lr=0.1, storage=storage)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", LOSSES)
def test_a_seeded_run_is_that_of_the_loss_written_out(name, budget):
    """The engine clips the gradient of the record's own loss, whichever way it is written."""
    inputs = torch.randn(40, 4)
    targets = torch.randint(0, 3, (40,)) if name == "cross-entropy" else (torch.randn(40, 3) > 0).float()
    torch_names = {"bce": "binary_cross_entropy_with_logits", "mse": "mse_loss", "huber": "huber_loss"}
    written_out = getattr(functional, torch_names.get(name, "cross_entropy"))
    plan = ap.plan("abadi", budget=budget, population=40, sample_rate=0.5, steps=3)
    weights = []
    for loss in (name, written_out):
        torch.manual_seed(1)
        model = nn.Linear(4, 3)
        ap.train(model, loss, (inputs, targets), plan, lr=0.5, seed=3)
        weights.append(model.weight.detach())
    torch.testing.assert_close(weights[0], weights[1])


def test_the_mean_of_a_batch_without_privacy():
    plain = functional.cross_entropy(LOGITS, CLASSES)
    assert torch.equal(mean_loss(ap.Loss("cross-entropy"), LOGITS, CLASSES), plain)
    assert torch.equal(mean_loss(ap.Loss("mse"), LOGITS[:, :1], NUMBERS), (LOGITS[:, 0] - NUMBERS).square().mean())

    def added(outputs, targets):
        return functional.cross_entropy(outputs, targets, reduction="sum")

    torch.testing.assert_close(mean_loss(added, LOGITS, CLASSES), plain)
    assert as_loss(added) is added


WIDTH = 3
KINDS_OF_TARGETS = {
    "one class": ((6, WIDTH), torch.tensor([0, 2, -100, 1, 1, 0])),
    "a class at each place": ((3, WIDTH, 2), torch.tensor([[0, -100], [1, 2], [-100, -100]])),
    "probabilities": ((6, WIDTH), torch.full((6, WIDTH), 1 / WIDTH, dtype=torch.float64)),
    "probabilities at each place": ((3, WIDTH, 2), torch.full((3, WIDTH, 2), 1 / WIDTH, dtype=torch.float64)),
}


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("kind", KINDS_OF_TARGETS)
def test_cross_entropies_in_one_call_are_those_of_single_records(kind, reduction):
    shape, targets = KINDS_OF_TARGETS[kind]
    outputs = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for settings in ({}, {"label_smoothing": 0.1}, *([] if targets.is_floating_point() else [{"ignore_index": 1}])):
        loss = nn.CrossEntropyLoss(reduction=reduction, **settings)
        kept = torch.where(targets == -100, 1, targets) if "ignore_index" in settings else targets
        together = by_record(StatelessLoss(loss))(outputs, kept)
        alone = [loss(outputs[i : i + 1], kept[i : i + 1]).sum() for i in range(len(outputs))]
        torch.testing.assert_close(together, torch.stack(alone), equal_nan=True)


def with_a_hook():
    loss = nn.CrossEntropyLoss()
    loss.register_forward_hook(lambda module, inputs, output: 2 * output)
    return loss


def of_its_own():
    loss = nn.CrossEntropyLoss()
    loss.forward = lambda outputs, targets: outputs.sum()
    return loss


class Doubled(nn.CrossEntropyLoss):
    def forward(self, outputs, targets):
        return 2 * super().forward(outputs, targets)


@pytest.mark.parametrize(
    "make", [with_a_hook, of_its_own, Doubled, lambda: nn.CrossEntropyLoss(weight=torch.ones(WIDTH))]
)
def test_a_loss_that_is_more_than_cross_entropy_is_called_itself(make):
    assert by_record(make()) is None
    assert by_record(StatelessLoss(make())) is None


def test_a_loss_that_was_changed_in_a_run_is_used_as_it_was():
    loss = nn.CrossEntropyLoss(ignore_index=7)
    stateless = StatelessLoss(loss)
    loss.ignore_index = 1
    assert by_record(stateless).ignore_index == 7
