"""What a pipeline cannot do is refused by name on every rank, before anything is charged; a stage that is lost ends the run in seconds."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from pipelined_runs import ROWS, plan_by_stages, some_records, two_stages
from spawning import Failed
from torch import nn

import apportion as ap
from apportion.accounting.ledger import Ledger
from apportion.accounting.run_filter import RULES
from apportion.pipeline import per_device
from apportion.pipeline.stage_vetting import ProvedState, vet_stage

HERE = Path(__file__).parent
SECONDS = 30


class _MixedOnTheWayBack(torch.autograd.Function):
    @staticmethod
    def forward(context, value):
        return value * 1

    @staticmethod
    def backward(context, gradient):
        return gradient.flip(0)


class Mixing(nn.Module):
    """Hands the gradients of other records to the stage before it. Its own parameter never sees them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, value):
        return self.layer(_MixedOnTheWayBack.apply(value))


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 5)

    def forward(self, value):
        return self.layer(value), value


def refused(rank, change):
    """What a run with one thing changed raises; and what is left of the ledger."""
    stages = two_stages()
    plan = plan_by_stages(2)
    options = {"lr": 0.5, "execution": ap.Execution(micro_batch=ROWS)}
    data = some_records()
    by_stages = {"groups": per_device(2)}
    if change == "flat":
        plan = plan_by_stages(2, clip=ap.clip.Fixed(1.0))
    elif change == "across":
        plan = plan_by_stages(2, clip=ap.clip.Fixed(1.0, groups=(("0.*", "1.1.*"), ("1.3.*",))))
    elif change == "frames":
        plan = plan_by_stages(2, clip=ap.clip.AdaClip(groups="layer"))
    elif change == "users":
        unit = ap.User([number // 5 for number in range(40)], k_max=5)
        plan = plan_by_stages(2, budget=ap.Budget(epsilon=20.0, delta=1e-5, unit=unit), population=8)
    elif change == "update":
        recipe = ap.Recipe(
            name="averaged",
            clip=ap.clip.Fixed(1.0, **by_stages),
            noise=ap.noise.Constant(),
            update=ap.update.TailAverage(),
        )
        plan = ap.plan(recipe, budget=plan.budget, population=40, sample_rate=0.5, steps=4)
    elif change == "feedback":
        plan = ap.plan("yu-validation", budget=plan.budget, population=40, sample_rate=0.5, steps=20)
    elif change == "folder":
        options["storage"] = ap.Storage("somewhere")
    elif change == "memory":
        options["execution"] = ap.Execution(memory_limit="1GB")
    elif change == "noise":
        options["execution"] = ap.Execution(micro_batch=ROWS, noise_from="first rank")
    elif change == "nothing learns":
        stages[1] = nn.Tanh()
    elif change == "mixing":
        stages[1] = Mixing()
    elif change == "batch norm":
        stages[0] = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
    elif change == "in place":
        stages[1] = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 2))
    elif change == "two tensors":
        stages[0] = Pair()
    elif change == "no data" and rank == 1:
        data = None
    elif change == "other data" and rank == 1:
        data = some_records(30)
    elif change == "shard":
        data = ap.distributed.LocalShard(data)
    elif change == "rate" and rank == 1:
        options["lr"] = 0.25
    elif change == "one by one":
        options["execution"] = ap.Execution(micro_batch=ROWS, engine="loop")
    ap.pipeline.train(stages[rank], "cross-entropy", data, plan, **options)


REFUSED = {
    "flat": "plan.clip.groups",
    "across": "several stages",
    "frames": "plan.clip",
    "users": "plan.unit",
    "update": "TailAverage",
    "feedback": "plan.noise",
    "folder": "storage.folder",
    "memory": "memory_limit",
    "noise": "execution.noise_from",
    "nothing learns": "no parameter that learns",
    "mixing": "stage 1 keeps records apart",
    "batch norm": "BatchNorm",
    "in place": "overwrites the records",
    "two tensors": "one tensor",
    "no data": "data",
    "other data": "data",
    "shard": "LocalShard",
    "rate": "optimizer.lr",
    "one by one": "one record after the other",
}


QUICK = ["flat", "across", "mixing", "folder", "other data"]


@pytest.mark.parametrize("change", QUICK)
def test_it_is_refused_by_name_on_every_rank(two, change):
    check_refused(two, change)


@pytest.mark.slow
@pytest.mark.parametrize("change", sorted(set(REFUSED) - set(QUICK)))
def test_it_is_refused_by_name_too(two, change):
    check_refused(two, change)


def check_refused(two, change):
    with pytest.raises(Failed) as found:
        two.run(refused, change)
    kinds = [error[0] for error in found.value.errors]
    assert set(kinds) <= {"InvalidArgument", "UnsupportedModel", "RankLost"}, found.value.errors
    assert len(kinds) == 2
    assert all(REFUSED[change] in error[1] for error in found.value.errors), found.value.errors


def test_one_process_is_no_pipeline():
    with pytest.raises(ap.InvalidArgument, match="two or more processes"):
        ap.pipeline.train(two_stages()[0], "cross-entropy", some_records(), plan_by_stages(2), lr=0.5)


def test_a_ledger_without_room_refuses_the_run_on_both_ranks(two, tmp_path):
    path = tmp_path / "shared.sqlite"
    Ledger.create(path, name="few", rule=RULES["sum"](ap.Budget(epsilon=1.0, delta=1e-4, unit=ap.Record()))).close()
    with pytest.raises(Failed) as found:
        two.run(train_with_ledger, str(path))
    assert [error[0] for error in found.value.errors] == ["BudgetExhausted", "RankLost"]


def test_every_step_is_in_the_ledger_once(two, tmp_path):
    path = tmp_path / "shared.sqlite"
    Ledger.create(path, name="much", rule=RULES["sum"](ap.Budget(epsilon=30.0, delta=1e-4, unit=ap.Record()))).close()
    two.run(train_with_ledger, str(path))
    ledger = Ledger.open(path)
    assert ledger.verify() is None
    assert len(list(ledger.charges(1))) == 6
    ledger.close()


def train_with_ledger(rank, path):
    stages, execution = two_stages(), ap.Execution(micro_batch=ROWS)
    storage = ap.Storage(ledger=path)
    ap.pipeline.train(
        stages[rank], "cross-entropy", some_records(), plan_by_stages(2), lr=0.5, execution=execution, storage=storage
    )


def test_a_stage_that_was_changed_since_its_proof_is_refused():
    stage = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))
    proved = ProvedState(stage)
    proved.require_same()
    with torch.no_grad():
        stage[0].weight += 1
    proved.require_same()  # which is what training does
    stage[1].p = 0.2
    with pytest.raises(ap.WrongOrder, match="attribute p"):
        proved.require_same()
    stage[1].p = 0.1
    with pytest.raises(ap.WrongOrder, match="train"):
        ProvedState(stage.eval()).require_same()


def test_a_stage_is_proved_for_any_output_gradient_and_for_what_it_hands_back():
    vetted = vet_stage(nn.Linear(5, 2), 1, torch.zeros(5), torch.zeros(()), None, 3, ap.Execution())
    assert vetted.outside.shape == (2,)
    with pytest.raises(ap.UnsupportedModel, match="stage 1 keeps records apart in what it hands"):
        vet_stage(Mixing(), 1, torch.zeros(5), torch.zeros(()), None, 3, ap.Execution())
    vet_stage(Mixing(), 0, torch.zeros(5), torch.zeros(()), None, 3, ap.Execution())  # nothing is behind the first


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("how", ["kill", "raise"])
def test_a_lost_stage_ends_the_run_in_seconds(tmp_path, victim, how):
    environment = {"PYTHONPATH": ":".join([str(HERE), *sys.path]), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(HERE / "lost_stage.py"), str(tmp_path), str(rank), how if rank == victim else "go on"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    lost, other = processes[victim], processes[1 - victim]
    lost.communicate(timeout=120)
    ended = time.monotonic()
    text = other.communicate(timeout=SECONDS)[0]
    assert time.monotonic() - ended < SECONDS
    assert lost.returncode != 0
    assert other.returncode == 4, text
    assert "another rank ended" in text
    assert "may be charged, and nothing of it was released" in text
    ledger = Ledger.open(tmp_path / "ledger.sqlite")
    assert ledger.verify() is None
    assert len(list(ledger.charges(1))) == 4  # the fourth step was under way
    ledger.close()
