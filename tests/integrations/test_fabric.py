"""Lightning Fabric: a private loop with its objects is the same loop as without them, and what would break the guarantee is refused."""

import runpy
from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.wrappers import _FabricModule, _FabricOptimizer
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
from apportion.errors import InvalidArgument, WrongOrder

ROOT = Path(__file__).parents[2]
INPUTS = torch.randn(80, 3, generator=torch.Generator().manual_seed(1))
RECORDS = INPUTS, (INPUTS[:, 0] > 0).long()
BUDGET = ap.Budget(epsilon=5.0, delta=1e-5, unit=ap.Record())
PLAN = ap.plan("abadi", budget=BUDGET, population=80, sample_rate=0.3, steps=4)


def parts():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def loop(model, optimizer, backward):
    private = ap.make_private(model, optimizer, RECORDS, PLAN, seed=1)
    for inputs, labels in private.batches():
        private.optimizer.zero_grad()
        backward(cross_entropy(private.model(inputs), labels))
        private.optimizer.step()
    return private


def test_a_loop_with_fabric_is_the_same_loop():
    fabric, (model, optimizer) = Fabric(accelerator="cpu", devices=1), parts()
    wrapped = fabric.setup(model, optimizer)
    private = loop(*wrapped, fabric.backward)
    assert private.run.model is model  # what is saved has the names of the model's own parameters
    plain, other = parts()
    loop(plain, other, lambda loss: loss.backward())
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), plain.parameters(), strict=True))
    with pytest.raises(WrongOrder):
        wrapped[1].step()  # past the curator


def test_train_takes_a_model_from_fabric():
    fabric, (model, _) = Fabric(accelerator="cpu", devices=1), parts()
    before = [one.clone() for one in model.parameters()]
    run = ap.train(fabric.setup(model), cross_entropy, RECORDS, PLAN, lr=0.5, seed=1)
    assert run.model is model
    assert not any(torch.equal(one, two) for one, two in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("wrap", ["model", "optimizer"])
def test_several_processes_are_refused(wrap):
    strategy, (model, optimizer) = Fabric(accelerator="cpu", devices=2, strategy="ddp").strategy, parts()
    if wrap == "model":
        model = _FabricModule(model, strategy)
    else:
        optimizer = _FabricOptimizer(optimizer, strategy)
    with pytest.raises(InvalidArgument, match="DDPStrategy.*each would claim the whole budget"):
        ap.make_private(model, optimizer, RECORDS, PLAN)


def test_a_loader_of_fabric_is_a_loader():
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*RECORDS), batch_size=8)
    wrapped = Fabric(accelerator="cpu", devices=1).setup_dataloaders(loader)
    with pytest.raises(InvalidArgument, match=r"^data='DataLoader .*loader\.dataset"):
        ap.make_private(*parts(), wrapped, PLAN)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_fewer_bits_are_refused(precision):
    fabric, (model, optimizer) = Fabric(accelerator="cpu", devices=1, precision=precision), parts()
    model, optimizer = fabric.setup(model, optimizer)
    with pytest.raises(InvalidArgument, match=precision):
        ap.make_private(model, optimizer, RECORDS, PLAN)


@pytest.mark.slow
def test_the_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "fabric_loop.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "ε = " in said
    assert (tmp_path / "steps.csv").read_text().count("\n") == 1 + 60
    assert float(said.split("accuracy")[1].split()[0]) > 0.75
