"""Refusals: each names the argument, the value, the reason and the fix; nothing is trained, nothing is charged."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import apportion as ap
import runs

GOOD = {"population": 40, "sample_rate": 0.25, "steps": 3, "lr": 0.5}


def train(model, data, budget, out, **options):
    return runs.train(model, cross_entropy, data, budget=budget, out=out, **{**GOOD, **options})


@pytest.mark.parametrize(
    ("values", "argument"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"epsilon": "three"}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"delta": 2.0}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({"unit": None}, "unit"),
        ({"unit": "record"}, "unit"),
        ({"unit": ap.Record}, "unit"),
    ],
)
def test_budgets(values, argument):
    with pytest.raises(ap.InvalidArgument, match=f"^{argument}="):
        ap.Budget(**{"epsilon": 3.0, "delta": 1e-5, "unit": ap.Record(), **values})


@pytest.mark.parametrize("missing", ["epsilon", "delta", "unit"])
def test_no_part_of_a_budget_has_a_default(missing):
    parts = {"epsilon": 3.0, "delta": 1e-5, "unit": ap.Record()}
    del parts[missing]
    with pytest.raises(TypeError, match=missing):
        ap.Budget(**parts)


def test_a_weak_delta_warns(model, records, tmp_path):
    with pytest.warns(UserWarning, match=r"delta=0.03 is larger than 1/population"):
        train(model, records, ap.Budget(epsilon=3.0, delta=0.03, unit=ap.Record()), None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"population": None}, "^population=None.*declared"),
        ({"population": 0}, "^population=0"),
        ({"population": 2.5}, "^population=2.5"),
        ({"sample_rate": None}, "neither was given.*batch_size or sample_rate"),
        ({"batch_size": 10}, "both were given"),
        ({"sample_rate": 0.0}, "^sample_rate=0.0"),
        ({"sample_rate": 1.5}, "^sample_rate=1.5"),
        ({"sample_rate": math.nan}, "^sample_rate=nan"),
        ({"sample_rate": None, "batch_size": 41}, "^batch_size=41.*exceeds population"),
        ({"steps": None}, "neither was given.*epochs or steps"),
        ({"steps": 0}, "^steps=0"),
        ({"steps": None, "epochs": -1}, "^epochs=-1"),
        ({"lr": 0.0}, "^lr=0.0"),
        ({"lr": math.nan}, "^lr=nan"),
        ({"optimizer": "sdg"}, "Did you mean 'sgd'"),
        ({"clip": 1.0}, "^clip=1.0: it is not a clip strategy"),
        ({"noise": 1.0}, "^noise=1.0: it is not a noise strategy"),
        ({"seed": -1}, "^seed=-1"),
        ({"evaluate": (torch.zeros(1, 4), torch.zeros(1))}, "^evaluate="),
        ({"budget": 3.0}, "^budget=3.0"),
        ({"execution": 64}, "^execution=64"),
        ({"clip": ap.clip.Fixed}, "not a clip strategy"),
        ({"optimizer": torch.optim.LBFGS}, "LBFGS.*closure"),
        ({"optimizer": lambda parameters, lr: None}, "NoneType"),
    ],
)
def test_arguments_of_train(model, records, budget, tmp_path, options, words):
    before = [parameter.detach().clone() for parameter in model.parameters()]
    out = tmp_path / "run"
    with pytest.raises(ap.InvalidArgument, match=words):
        train(model, records, options.pop("budget", budget), out, **options)
    assert not out.exists(), "something was charged"
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_model_and_loss_swapped(model, records, budget):
    with pytest.raises(ap.InvalidArgument, match="^model="):
        runs.train(cross_entropy, model, records, budget=budget, **GOOD)


@pytest.mark.parametrize(
    ("build", "targets"),
    [
        (lambda: nn.Linear(4, 3), torch.zeros(5, 2)),
        (lambda: nn.Linear(4, 1), torch.rand(5)),
        (lambda: nn.Linear(4, 1), torch.full((5,), 2)),
    ],
)
def test_evaluation_without_a_notion_of_accuracy_is_refused_before_any_charge(
    records, budget, tmp_path, build, targets
):
    with pytest.raises(ap.InvalidArgument, match="^evaluate=.*accuracy needs"):
        train(build(), records, budget, tmp_path / "run", evaluate=ap.Public((torch.zeros(5, 4), targets)))
    assert not (tmp_path / "run").exists()


def test_a_micro_batch_is_a_number_of_records():
    with pytest.raises(ap.InvalidArgument, match="micro_batch=0"):
        ap.Execution(micro_batch=0)


def test_unknown_keywords_are_refused(model, records, budget):
    with pytest.raises(TypeError, match="poison_sampling"):
        train(model, records, budget, None, poison_sampling=False)


def shuffled(data):
    return DataLoader(TensorDataset(*data), batch_size=8, shuffle=True)


def weighted(data):
    return DataLoader(TensorDataset(*data), batch_size=8, sampler=WeightedRandomSampler([1.0] * len(data[0]), 8))


@pytest.mark.parametrize("loader", [shuffled, weighted])
def test_loaders_with_their_own_sampling(model, records, budget, tmp_path, loader):
    with pytest.raises(ap.InvalidArgument, match="Sampler.*loader.dataset"):
        train(model, loader(records), budget, tmp_path / "run")
    with pytest.raises(ap.InvalidArgument, match="Sampler.*loader.dataset"):
        runs.make_private(
            model,
            torch.optim.SGD(model.parameters(), lr=1.0),
            loader(records),
            budget=budget,
            population=40,
            sample_rate=0.1,
            steps=1,
        )


def contrastive(outputs, targets):
    return (outputs @ outputs.T).logsumexp(1).mean()


def normalised_by_the_batch(outputs, targets):
    losses = cross_entropy(outputs, targets, reduction="none")
    return (losses / losses.sum()).square().sum()


@pytest.mark.parametrize("loss", [contrastive, normalised_by_the_batch])
def test_losses_that_mix_records(model, records, budget, tmp_path, loss):
    with pytest.raises(ap.UnsupportedModel, match="loss mixes records"):
        runs.train(model, loss, records, budget=budget, out=tmp_path / "run", **GOOD)
    assert not (tmp_path / "run").exists()


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x - x.mean(0))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), "BatchNorm1d.*GroupNorm"),
        (Centred, "mixes records"),
        (lambda: nn.Linear(4, 2).requires_grad_(False), "no trainable parameter"),
        (lambda: nn.Linear(3, 2), "failed on a synthetic record"),
    ],
)
def test_models_that_cannot_be_trained_privately(records, budget, tmp_path, build, words):
    with pytest.raises(ap.UnsupportedModel, match=words):
        train(build(), records, budget, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (lambda model: nn.Linear(4, 2).parameters(), "not the model's"),
        (lambda model: [*model.parameters(), nn.Parameter(torch.zeros(1))], "not the model's"),
        (lambda model: model[0].parameters(), "does not hold"),
    ],
)
def test_an_optimizer_over_other_parameters(model, records, budget, parameters, words):
    optimizer = torch.optim.SGD(parameters(model), lr=1.0)
    with pytest.raises(ap.InvalidArgument, match=words):
        runs.make_private(model, optimizer, records, budget=budget, population=40, sample_rate=0.1, steps=1)


def test_an_optimizer_instance_is_for_make_private(model, records, budget):
    with pytest.raises(ap.InvalidArgument, match="use make_private"):
        train(model, records, budget, None, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))


def test_a_folder_with_a_ledger_is_not_overwritten(model, records, budget, tmp_path):
    train(model, records, budget, tmp_path / "run")
    with pytest.raises(ap.InvalidArgument, match="there is an earlier run already"):
        train(model, records, budget, tmp_path / "run")
