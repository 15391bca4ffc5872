"""Groups and users from plan to statement: in `train` and in a loop of one's own, over crashes, with worker processes, behind seals."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import apportion as ap
from apportion.accounting.ledger import Ledger
from apportion.accounting.run_filter import SumOfRuns
from apportion.audit.sealed import SealedAccess, inside, sealed
from apportion.curator.gradients.engine import EngineChoice
from apportion.curator.randomness import Randomness
from apportion.curator.records import as_records
from apportion.errors import BudgetExhausted, InvalidArgument
from apportion.execution import Execution
from apportion.strategies.recipes import named
from apportion.training.loop import take_steps
from apportion.training.opening import open_session
from apportion.training.optimizers import build_optimizer
from apportion.training.session import Setup
from people import GROUPS, group_budget
from suites import thinned

LOSS = nn.CrossEntropyLoss()
IDS = [f"zqid{number % 11:03}" for number in range(40)]
LABELS = [("strict", "medium", "loose")[number % 3] for number in range(40)]
UNITS = {
    "record": ap.Record(),
    "user": ap.User(IDS),
    "k_max": ap.User(IDS, k_max=2, pooling="sum"),
    "coins": ap.User(IDS, k_max=3, coins="record"),
}


def make_plan(unit="record", people=None, recipe="abadi", steps=5, spare=0, labels=LABELS):
    budget = group_budget(unit=UNITS[unit], labels=labels)
    chosen = replace(named(recipe) if isinstance(recipe, str) else recipe, people=people or ap.people.Scale())
    declared = {"population": 400, "count_usable": False}  # far more than there are
    return ap.plan(chosen, budget=budget, **declared, sample_rate=0.2, steps=steps, spare=spare)


def fresh_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def weights(model):
    return torch.cat([value.detach().flatten() for value in model.parameters()])


def train(plan, data, **options):
    model = fresh_model()
    return ap.train(model, LOSS, data, plan, lr=0.1, **options), weights(model)


# --- what is said -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("people", [ap.people.Sample(), ap.people.Scale()], ids=str)
def test_the_run_says_what_each_group_spends(records, tmp_path, people):
    plan = make_plan("user", people)
    run, _ = train(plan, records, storage=ap.Storage(tmp_path / "run"))
    facts = run.statement()
    assert [one["name"] for one in facts["groups"]] == list(GROUPS)
    for one, factors in zip(facts["groups"], plan.factors, strict=True):
        assert 0.99 * one["budget"] <= one["epsilon"] == one["epsilon_spent"] <= one["budget"]
        assert run.epsilon(group=one["name"]) == one["epsilon"] == plan.group_epsilon(one["name"])
        assert (one["share"], one["clip_scale"]) == (factors.share, factors.clip)
        assert one["sample_rate"] == pytest.approx(0.2 * factors.rate)
    assert run.history[-1].group_epsilon == pytest.approx(
        {one["name"]: one["epsilon"] for one in facts["groups"]}, rel=1e-3
    )
    assert run.history[0].group_epsilon["strict"] < run.history[-1].group_epsilon["strict"]
    assert run.epsilon(group=2) > run.epsilon()
    public = tmp_path / "run" / "public"
    stated = json.loads((public / "privacy.json").read_text())
    assert stated["groups"] == json.loads(json.dumps(facts["groups"]))
    text = (public / "privacy.md").read_text()
    assert all(f"| {name} |" in text for name in GROUPS)
    assert run.report(tmp_path / "run.html").exists()
    ledger = Ledger.open(tmp_path / "run" / "secret" / "ledger.sqlite")
    assert list(ledger.events(1)) == list(plan.tokens)
    assert all(len(event.groups) == 3 for event in ledger.events(1))


def test_the_rule_for_users_with_many_records_is_stated_whether_or_not_there_is_one(records):
    few, many = make_plan("user").budget.unit, 2
    texts = set()
    for ids in ([str(number) for number in range(40)], IDS, ["one"] * 40):
        plan = make_plan("user").with_owners(ids=ids)
        plan = replace(plan, budget=replace(plan.budget, unit=replace(few, ids=ids, k_max=many)))
        run, _ = train(plan, records)
        facts = run.statement()
        texts.add(json.dumps(facts["users"]) + facts["neighbours"] + facts["sampling"])
    assert len(texts) == 1
    assert "keyed hash" in next(iter(texts))


def test_no_file_in_the_run_folder_holds_an_id_or_a_label(records, tmp_path):
    labels = [f"{one}" for one in LABELS]
    for recovery in ("fresh", "exact"):
        plan = make_plan("k_max", labels=labels)
        folder = tmp_path / recovery
        run, _ = train(plan, records, storage=ap.Storage(folder, recovery=recovery, every=1))
        run.report(folder / "page.html")
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert len(files) > 5
        assert not [path for path in files if b"zqid" in path.read_bytes()]


def test_what_is_public_does_not_depend_on_the_sizes_of_groups_or_users(records):
    """Another assignment changes weights, and nothing else that is said."""
    said = set()
    for ids, labels in ((IDS, LABELS), (["one"] * 40, ["strict"] * 40), ([str(n) for n in range(40)], ["loose"] * 40)):
        plan = make_plan("user").with_owners(ids=ids, labels=labels)
        run, _ = train(plan, records, seed=1)
        facts = {key: value for key, value in run.statement().items() if key != "written"}
        said.add(json.dumps([facts, [entry.as_json() for entry in run.history]], sort_keys=True, default=str))
    assert len(said) == 1


# --- the same run, executed otherwise -----------------------------------------------------------------------------------------------------


class Odd(Dataset):
    """One record cannot be read, one is NaN, one has another shape."""

    def __init__(self, records):
        self.records = records

    def __len__(self):
        return 40

    def __getitem__(self, index):
        inputs, target = self.records[0][index], self.records[1][index]
        if index == 7:
            raise OSError("a record of Mr Smith")
        return (torch.full((4,), torch.nan), target) if index == 9 else (inputs[:3] if index == 11 else inputs, target)


def by_turns(unit, people):
    """In the core suite every unit, with one way or the other."""
    return isinstance(people, (ap.people.Sample, ap.people.Scale)[list(UNITS).index(unit) % 2])


@pytest.mark.parametrize(
    ("unit", "people"), thinned(itertools.product(UNITS, [ap.people.Sample(), ap.people.Scale()]), by_turns), ids=str
)
def test_engine_and_micro_batch_change_nothing(records, unit, people):
    plan = make_plan(unit, people, recipe=named("he-global"))
    found = [
        train(plan, records, seed=5, execution=ap.Execution(micro_batch=size, engine=engine))[1]
        for size, engine in ((256, "one-pass"), (1, "one-pass"), (3, "vmap"), (2, "loop"))
    ]
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("unit", ["record", "user", "coins"])
def test_records_that_cannot_be_used_and_worker_processes_change_nothing_else(records, unit):
    plan = make_plan(unit)
    here = [train(plan, Odd(records), seed=5, execution=ap.Execution(micro_batch=size))[1] for size in (1, 3, 256)]
    away = train(plan, Odd(records), seed=5, execution=ap.Execution(micro_batch=3, workers=1))[1]
    for other in (*here[1:], away):
        torch.testing.assert_close(other, here[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("unit", UNITS)
def test_a_loop_of_ones_own_is_the_same_run(records, unit):
    plan = make_plan(unit)
    model = fresh_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = ap.make_private(model, optimizer, records, plan, seed=2, execution=ap.Execution(micro_batch=3))
    for inputs, targets in private.batches():
        private.optimizer.zero_grad()
        LOSS(private.model(inputs), targets).backward()
        private.optimizer.step()
    _, expected = train(plan, records, seed=2)
    torch.testing.assert_close(weights(model), expected, atol=1e-5, rtol=0)
    assert private.epsilon(group="strict") == plan.group_epsilon("strict") <= 1.0


class Stopped(Exception):
    pass


@pytest.mark.parametrize("recovery", ["fresh", "exact"])
@pytest.mark.parametrize("unit", ["record", "k_max"])
def test_a_run_that_was_stopped_goes_on_and_never_pays_less(records, tmp_path, unit, recovery):
    plan = make_plan(unit, ap.people.Sample(), steps=6, spare=2)
    storage = ap.Storage(tmp_path / "run", recovery=recovery, every=4)

    def stop(entry):
        if entry.step == 6:
            raise Stopped

    with pytest.raises(Stopped):
        train(plan, records, storage=storage, progress=stop)
    left = ap.Plan.from_json(plan.to_json())
    with pytest.raises(InvalidArgument, match="declared"):
        train(left, records, storage=replace(storage, resume=True))
    owners = {"labels": LABELS} | ({} if unit == "record" else {"ids": IDS})
    run, _ = train(left.with_owners(**owners), records, storage=replace(storage, resume=True))
    facts = run.statement()
    assert facts["steps_taken"] == 6
    assert facts["draws_charged"] == (6 if recovery == "exact" else facts["draws_charged"]) >= 6
    ledger = Ledger.open(tmp_path / "run" / "secret" / "ledger.sqlite")
    assert sum(1 for _ in ledger.events(1)) == facts["draws_charged"]
    for one in facts["groups"]:
        assert one["epsilon_spent"] <= one["epsilon"] <= one["budget"]
    assert run.history[-1].group_epsilon is not None


def test_a_data_set_is_charged_what_the_loosest_group_pays(records, tmp_path):
    for unit in ("record", "user"):
        path = tmp_path / unit
        limit = ap.Budget(epsilon=4.0, delta=1e-4, unit=ap.Record() if unit == "record" else ap.User())
        Ledger.create(path, name="hospital", rule=SumOfRuns(limit)).close()
        run, _ = train(make_plan(unit), records, storage=ap.Storage(ledger=path))
        shared = run.statement()["data_set"]
        assert (shared["unit"], shared["epsilon_admitted"]) == (unit, pytest.approx(run.epsilon(group="loose")))
        with pytest.raises(BudgetExhausted):
            train(make_plan(unit), records, storage=ap.Storage(ledger=path))
        with pytest.raises(InvalidArgument, match="same unit"):
            train(make_plan("user" if unit == "record" else "record"), records, storage=ap.Storage(ledger=path))


def a_session(records, unit, clip, closed):
    model = fresh_model()
    setup = Setup(
        model=model,
        optimizer=build_optimizer(model, "sgd", 0.1),
        records=as_records(records),
        plan=make_plan(unit, ap.people.Sample(), recipe=ap.Recipe(clip=clip), steps=3),
        choice=EngineChoice("vmap"),
        execution=Execution(micro_batch=3),
        randomness=Randomness.seeded(0),
    )
    return open_session(sealed(setup) if closed else setup)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    "clip", [ap.clip.Quantile(share=0.1, groups="layer"), ap.clip.AdaClip()], ids=["quantile", "adaclip"]
)
def test_nothing_raw_is_touched_outside_the_curator(records, unit, clip):
    found = []
    for closed in (True, False):
        session = a_session(records, unit, clip, closed)
        take_steps(session, LOSS)
        found.append(weights(session.model))
    assert torch.equal(*found)


def test_the_vector_of_a_user_who_is_not_complete_is_sealed_too(records):
    session = a_session(records, "user", ap.clip.Fixed(1.0), closed=True)
    draw = session.curator.open(session.next_request())
    with inside():
        for piece in draw.micro_batches():
            session.curator._add_records(draw, piece, LOSS)
    (vector, *_) = draw._open_user.rows.values()
    with pytest.raises(SealedAccess):
        vector.sum()


# --- what is refused -------------------------------------------------------------------------------------------------------------------


def test_runs_without_owners_are_refused_and_leave_nothing_behind(records, tmp_path):
    plan = ap.Plan.from_json(make_plan("user").to_json())
    for incomplete in (
        plan,
        plan.with_owners(ids=IDS),
        plan.with_owners(labels=LABELS),
        plan.with_owners(ids=IDS, labels=LABELS[:-1]),
    ):
        with pytest.raises(InvalidArgument):
            train(incomplete, records, storage=ap.Storage(tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []


def test_an_update_that_asks_for_losses_has_no_users(records):
    plan = ap.plan(
        "dp-agd",
        budget=ap.Budget(epsilon=4.0, delta=1e-5, unit=ap.User(IDS)),
        population=400,
        sample_rate=0.2,
        steps=6,
    )
    with pytest.raises(InvalidArgument, match="each record"):
        train(plan, records)


def test_an_epsilon_for_each_person_is_rounded_down_to_a_public_grid(records):
    epsilons = np.linspace(0.5, 3.0, 40)
    grouping = ap.people.group_by_epsilon(epsilons, grid=[0.5, 1.0, 2.0, 3.0])
    epsilon_of = {group.name: group.epsilon for group in grouping.groups}
    budgets = [epsilon_of[name] for name in grouping.labels]
    assert all(given <= asked for given, asked in zip(budgets, epsilons, strict=True))
    assert all(asked < 2 * given or given == 0.5 for given, asked in zip(budgets, epsilons, strict=True))
    assert sum(group.share for group in grouping.groups) == pytest.approx(1.0)
    budget = ap.Budget.of_groups(grouping.groups, delta=1e-5, unit=ap.Record(), labels=grouping.labels)
    plan = ap.plan(
        ap.Recipe(clip=ap.clip.Fixed(1.0)), budget=budget, population=400, count_usable=False, sample_rate=0.2, steps=3
    )
    run, _ = train(plan, records)
    for group in grouping.groups:
        assert run.epsilon(group=group.name) <= group.epsilon
    with pytest.raises(InvalidArgument, match="smallest"):
        ap.people.group_by_epsilon([0.3, 2.0], grid=[0.5, 1.0])
    with pytest.raises(InvalidArgument, match="epsilons"):
        ap.people.group_by_epsilon([0.0, 2.0], grid=[0.5, 1.0])
