"""A federated run, from the plan to the statement: what is released, what is charged, what is refused."""

import itertools
import json
import multiprocessing
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from federation import (
    POPULATION,
    RATE,
    ROUNDS,
    Scripted,
    add_update,
    honest,
    life,
    parameters,
    plan,
    random_update,
    server,
    updates,
)
from scipy import stats
from torch import nn

import apportion as ap
from apportion.accounting.ledger import Ledger
from apportion.accounting.run_filter import GaussianRuns
from apportion.curator.randomness import Randomness, poisson_sample
from apportion.federated.clients import Reply
from apportion.releases import FLOAT32_HEADROOM
from apportion.strategies.recipes import READY, named

CLIENTS = 30


def weights(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def trained(recipe="abadi", *, clients=None, model=None, **options):
    model = model or server()
    made = plan(recipe) if isinstance(recipe, str) else recipe
    data = updates(model, CLIENTS, 0.5) if clients is None else clients
    return ap.federated.train(model, data, add_update, made, progress=False, **options)


def clipped_mean(vectors, threshold, deviation, noise, size):
    """(Σ Δ·min(1, C/‖Δ‖) + noise)/size, written down again; `noise` is handed out in the order of the parameters."""
    mean = {}
    for name in vectors[0] if vectors else ():
        mean[name] = torch.zeros_like(vectors[0][name])
    for vector in vectors:
        norm = torch.cat([part.flatten() for part in vector.values()]).norm()
        for name, part in vector.items():
            mean[name] += part * min(1.0, threshold / norm.item())
    return {
        name: (part - deviation * torch.from_numpy(noise.normals(part.numel()).copy()).reshape(part.shape)) / size
        for name, part in mean.items()
    }


@pytest.mark.parametrize("size", [0.05, 0.5, 50.0])
def test_a_run_is_clipped_averaging_over_the_expected_number(size):
    """Against the formula: coins and noise from the same stream, and nothing else from the library."""
    model, made = server(), plan("du-dynamic")
    vectors = updates(model, CLIENTS, size)
    expected, source = weights(model), Randomness.seeded(3)
    run = trained(made, clients=vectors, model=model, lr=0.7, seed=3)
    for step in range(1, ROUNDS + 1):
        streams = source.next_draw()
        drawn = poisson_sample(CLIENTS, (RATE,), streams.coins)
        threshold = 1.5 * 2 ** (-step / ROUNDS)
        deviation = made.multipliers[step - 1] * threshold * (1 + FLOAT32_HEADROOM)
        moved = clipped_mean([vectors[one] for one in drawn], threshold, deviation, streams.noise, RATE * POPULATION)
        for name in expected:
            expected[name] += 0.7 * moved[name]
    for name, value in parameters(run.model).items():
        torch.testing.assert_close(value.detach(), expected[name], rtol=1e-9, atol=1e-9)
    assert run.epsilon() == pytest.approx(made.epsilon)
    assert [entry.clip[0] for entry in run.history] == pytest.approx([1.5 * 2 ** (-t / ROUNDS) for t in range(1, 6)])


@pytest.mark.parametrize("recipe", ["abadi", "du-growing", "du-sensitivity", "du-dynamic", "lin-decay"])
def test_noise_has_the_size_that_is_paid_for(recipe):
    """Clients that send nothing but zeros: what moves the weights is noise. A standard deviation that is 4 % off is refused."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(60, 40, bias=False), nn.Linear(40, 30, bias=False)).double()
    zeros = [{name: torch.zeros_like(value) for name, value in model.named_parameters()} for _ in range(CLIENTS)]
    made, seen = plan(recipe, rounds=6), [weights(model)]
    run = trained(made, clients=zeros, model=model, log=lambda entry: seen.append(weights(model)))
    values = []
    for step, (before, after) in enumerate(itertools.pairwise(seen), start=1):
        (threshold,) = run.history[step - 1].clip
        deviation = made.multipliers[step - 1] * threshold * (1 + FLOAT32_HEADROOM) / (RATE * POPULATION)
        values += [((after[name] - before[name]) / deviation).flatten().numpy() for name in before]
    normals = np.concatenate(values)
    assert len(normals) == 6 * 3600
    assert normals.std() == pytest.approx(1.0, abs=5 / np.sqrt(2 * len(normals)))
    assert stats.kstest(normals, "norm").pvalue > 1e-5


def test_each_client_tosses_a_coin_of_its_own():
    """The number of clients in a round is binomial: its variance is that of independent coins, and nobody is topped up."""
    model = server()
    clients = Scripted(200, lambda asked, client: [])
    ap.federated.train(model, clients, None, plan(rounds=300, population=200), progress=False)
    counts = [len(asked) for asked in clients.asked]
    assert len(counts) == 300
    assert np.mean(counts) == pytest.approx(200 * RATE, abs=5 * np.sqrt(200 * RATE * (1 - RATE) / 300))
    spread = stats.chi2(299).interval(1 - 1e-6)
    assert spread[0] < 299 * np.var(counts, ddof=1) / (200 * RATE * (1 - RATE)) < spread[1]
    often = np.bincount([one for asked in clients.asked for one in asked], minlength=200)
    assert stats.chisquare(often).pvalue > 1e-6


def test_a_round_in_which_nobody_is_drawn_or_nobody_answers_is_charged_and_noised():
    for rate, answers in ((1e-6, honest([])), (1.0, lambda asked, client: [])):
        model = server()
        before = weights(model)
        clients = Scripted(10, answers)
        recipe = ap.Recipe(clip=ap.clip.Fixed(1.0), noise=ap.noise.Constant(4.0))
        run = ap.federated.train(model, clients, None, plan(recipe, rounds=3, rate=rate, population=10), progress=False)
        assert sum(map(len, clients.asked)) == (0 if rate < 1 else 30)
        assert run.statement()["draws_charged"] == run.steps == 3
        assert all(not torch.equal(before[name], value) for name, value in parameters(model).items())
        assert all(torch.isfinite(value).all() for value in model.parameters())


def test_clients_that_come_later_toss_coins_too():
    model = server()
    vectors = updates(model, 50)
    clients = Scripted(5, honest(vectors))

    def grow(entry):
        clients.count = 50

    ap.federated.train(model, clients, None, plan(rounds=3, rate=1.0, population=50), progress=False, log=grow)
    assert [len(asked) for asked in clients.asked] == [5, 50, 50]


def test_nobody_is_asked_for_a_round_that_does_not_fit(tmp_path):
    """Neither when the limit of a shared ledger is too small, nor when the plan is spent."""
    limit = ap.Budget(epsilon=1.0, delta=1e-4, unit=ap.User())
    path = tmp_path / "clients.sqlite"
    Ledger.create(path, name="clients", rule=GaussianRuns(limit)).close()
    model = server()
    clients = Scripted(CLIENTS, honest(updates(model, CLIENTS)))
    with pytest.raises(ap.BudgetExhausted):
        ap.federated.train(model, clients, None, plan(epsilon=8.0), storage=ap.Storage(ledger=path), progress=False)
    assert clients.asked == []
    run = ap.federated.train(model, clients, None, plan(epsilon=0.5), storage=ap.Storage(ledger=path), progress=False)
    assert len(clients.asked) == ROUNDS
    with pytest.raises(ap.BudgetExhausted):
        run._session.curator.answer(run._session.next_request(), None)
    assert len(clients.asked) == ROUNDS


def test_the_charge_is_durable_before_anybody_is_asked(tmp_path):
    folder, seen = tmp_path / "run", []

    def answers(asked, client):
        seen.append(len(list(Ledger.open(folder / "secret" / "ledger.sqlite").charges())))
        return []

    model = server()
    made = plan(rounds=3, rate=1.0, population=1)
    ap.federated.train(model, Scripted(1, answers), None, made, storage=ap.Storage(folder), progress=False)
    assert seen == [1, 2, 3]


RUNNING = [name for name in READY if named(name).private and not isinstance(named(name).update, ap.AskingUpdate)]


@pytest.mark.parametrize("recipe", RUNNING)
def test_every_recipe_runs_unchanged(recipe):
    model = server(dtype=torch.float32)
    model = ap.temper(model) if recipe == "papernot" else model
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(4, 4, generator=generator), torch.tensor([0, 1, 1, 0])) for _ in range(8)]
    rounds = 20 if recipe == "yu-validation" else 4
    made = plan(recipe, rounds=rounds, population=200, rate=0.4)
    local = ap.federated.LocalSGD(lr=0.1, batch_size=2)
    options = {"validation": ap.Public(data[0])} if recipe == "yu-validation" else {}
    run = ap.federated.train(model, data, local, made, lr=0.1, progress=False, evaluate=ap.Public(data[0]), **options)
    assert 0 < run.steps <= made.steps
    assert run.epsilon() <= made.epsilon * (1 + 1e-9) <= 8.0 * (1 + 2e-9)
    assert run.statement()["unit"] == "user"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"plan": lambda: plan("dp-agd", rounds=20, population=10_000)}, "DPAGD also asks for losses"),
        ({"plan": lambda: plan("noisy-btls", rounds=20, population=10_000)}, "NoisyBTLS also asks for losses"),
        ({"plan": lambda: plan(replace(named("abadi"), people=ap.people.IndividualFilter()))}, "IndividualFilter"),
        ({"plan": lambda: plan(replace(named("abadi"), people=ap.people.IndividualEstimate()))}, "IndividualEstimate"),
        ({"plan": lambda: plan(norm=ap.features.ChannelNorm())}, "normalises features"),
        ({"plan": lambda: plan(budget=ap.Budget(epsilon=1.0, delta=1e-4, unit=ap.Record()))}, "a client is the user"),
        (
            {"plan": lambda: plan(budget=ap.Budget(epsilon=1.0, delta=1e-4, unit=ap.User(ids=[1])))},
            "a client is the user",
        ),
        (
            {"plan": lambda: plan(budget=ap.Budget(epsilon=1.0, delta=1e-4, unit=ap.User(k_max=3, coins="record")))},
            "a client is the user",
        ),
        ({"plan": lambda: plan("yu-validation", rounds=20)}, "public data"),
        ({"plan": lambda: "abadi"}, "executes a Plan"),
        ({"users_per_client": 3}, "2·C"),
        ({"users_per_client": True}, "2·C"),
        ({"clients": []}, "nobody"),
        ({"clients": {}}, "by number"),
        ({"clients": (torch.zeros(4, 4), torch.zeros(4))}, "one set of records"),
        ({"clients": torch.zeros(4, 4)}, "one set of records"),
        ({"clients": iter(())}, "by number"),
        ({"local": None}, "trains a client's copy"),
        ({"local": 3}, "trains a client's copy"),
        ({"clients": Scripted(3, honest([]))}, "in their own way"),
        ({"lr": -1.0}, "lr"),
        ({"evaluate": (torch.zeros(1, 4), torch.zeros(1))}, "Public"),
        ({"model": nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))}, "running statistics"),
        ({"log": 3}, "log"),
    ],
)
def test_what_cannot_work_is_refused_by_name_and_nobody_is_asked(change, reason, tmp_path):
    asked = []

    def local(model, data):
        asked.append(data)

    model = change.get("model", server())
    arguments = {"clients": updates(server(), 3), "local": local, **change}
    arguments["plan"] = change["plan"]() if "plan" in change else plan()
    arguments.pop("model", None)
    storage = ap.Storage(tmp_path / "run")
    with pytest.raises((ap.InvalidArgument, ap.UnsupportedModel), match=reason):
        ap.federated.train(model, progress=False, storage=storage, **arguments)
    assert asked == []
    assert not (tmp_path / "run").exists()


def test_processes_that_do_not_know_of_each_other_are_refused(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ap.InvalidArgument, match="torchrun has started several processes"):
        trained()
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(ap.InvalidArgument, match="DataParallel"):
        trained(model=nn.DataParallel(server()))


def test_the_same_data_under_two_numbers_is_refused():
    vector = random_update(server())
    with pytest.raises(ap.InvalidArgument, match="more than once"):
        trained(clients=[vector, random_update(server(), seed=1), vector])
    trained(clients=[None, None, (), (), vector])  # nobody's


def test_groups_of_clients_have_budgets_of_their_own():
    groups = {"strict": (2.0, 0.5), "loose": (8.0, 0.5)}
    labels = ["strict", "loose"] * 10
    for people in (ap.people.Scale(), ap.people.Sample()):
        budget = ap.Budget.of_groups(groups, delta=1e-4, unit=ap.User(), labels=labels)
        recipe = replace(named("abadi"), people=people)
        run = trained(plan(recipe, budget=budget), clients=updates(server(), 20))
        assert run.epsilon(group="strict") <= 2.0 < run.epsilon(group="loose") <= 8.0
    for labels, reason in ((lambda inputs, target: "strict", "holds no records"), (["strict"], "one entry for each")):
        budget = ap.Budget.of_groups(groups, delta=1e-4, unit=ap.User(), labels=labels)
        with pytest.raises(ap.InvalidArgument, match=reason):
            trained(plan(budget=budget), clients=updates(server(), 20))


def test_local_training_leaves_no_trace_in_the_server():
    """Buffers, generators, flags and gradients of the server are as before; dropout and shuffling are each client's own."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    model.register_buffer("seen", torch.zeros(()))
    data = [(torch.randn(4, 4), torch.zeros(4, dtype=torch.long)) for _ in range(6)]
    local = ap.federated.LocalSGD(lr=0.1, batch_size=2)

    def curious(copy, records):
        copy.seen += 1
        copy.note = records
        np.random.rand()
        local(copy, records)

    state = torch.get_rng_state(), np.random.get_state()[2]
    ap.federated.train(model, data, curious, plan(rounds=2, rate=1.0, population=6), progress=False)
    assert float(model.seen) == 0
    assert not hasattr(model, "note")
    assert all(value.grad is None for value in model.parameters())
    assert torch.equal(state[0], torch.get_rng_state())
    assert state[1] == np.random.get_state()[2]


def test_a_seed_repeats_a_run_and_says_that_it_is_not_private():
    data = [(torch.randn(4, 4), torch.zeros(4, dtype=torch.long)) for _ in range(6)]
    local = ap.federated.LocalSGD(lr=0.1, batch_size=2, epochs=2, momentum=0.9)
    runs = []
    for seed in (1, 1, 2):
        model = server(dtype=torch.float32)
        run = ap.federated.train(model, data, local, plan(population=6, rate=0.5), seed=seed, progress=False)
        runs.append(torch.cat([value.detach().flatten() for value in model.parameters()]))
        assert not run.private
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_clients_that_all_fail_stop_the_run_by_a_noisy_count():
    def broken(model, data):
        raise OSError("no data set here")

    made = plan(rounds=20, population=2000, rate=0.2, count_usable=True)
    assert made.usable is not None
    with pytest.raises(ap.UnusableRecords):
        ap.federated.train(server(), [1.0 * number for number in range(1, 2000)], broken, made, progress=False)


def test_the_statement_says_what_a_client_is(tmp_path):
    run = trained(storage=ap.Storage(tmp_path / "run"))
    facts = json.loads((tmp_path / "run" / "public" / "privacy.json").read_text())
    assert facts["federated"] is True
    assert facts["neighbours"] == "add or remove all records of one user"
    assert "clipped as one vector" in facts["users"]["rule"]
    assert any("no person stands behind two clients" in one for one in facts["assumptions"])
    text = (tmp_path / "run" / "public" / "privacy.md").read_text()
    assert "## Assumed of the clients" in text
    assert "hand-written" not in text
    assert facts["epsilon"] == run.plan.epsilon
    run.report(tmp_path / "run.html")


def test_nothing_about_single_clients_is_public(tmp_path):
    """Who was asked, who failed and why is in secret/ alone."""

    def fails(model, data):
        if "0.bias" in data and float(data["0.bias"][0]) > 0:
            raise ValueError("patient 4711 has no scan")
        add_update(model, data)

    model = server()
    made = plan(rounds=3, rate=1.0, population=CLIENTS)
    ap.federated.train(
        model, updates(model, CLIENTS), fails, made, storage=ap.Storage(tmp_path / "run"), progress=False
    )
    public = "".join(path.read_text(errors="replace") for path in (tmp_path / "run" / "public").glob("*.*"))
    assert "4711" not in public
    assert "4711" in (tmp_path / "run" / "secret" / "problems.jsonl").read_text()


@pytest.mark.parametrize("recovery", ["fresh", "exact"])
def test_a_run_that_was_interrupted_goes_on(tmp_path, recovery):
    """Ctrl-C while a client trains: the round is charged and lost. With exact recovery what was handed out comes again, bit for bit."""
    folder, model = tmp_path / "run", server()
    calls, made = [], plan(rounds=6, rate=1.0, population=4, spare=2)
    vectors = updates(model, 4)

    def local(copy, data):
        calls.append(1)
        if len(calls) == 10:  # in the third round
            os.kill(os.getpid(), signal.SIGINT)
        add_update(copy, data)

    storage = {"folder": folder, "recovery": recovery, "every": 1}
    with pytest.raises(KeyboardInterrupt):
        ap.federated.train(model, vectors, local, made, storage=ap.Storage(**storage), progress=False)
    assert len(list(Ledger.open(folder / "secret" / "ledger.sqlite").charges())) == 3
    again = server()
    run = ap.federated.train(again, vectors, local, made, storage=ap.Storage(**storage, resume=True), progress=False)
    assert run.steps == 6
    charged = list(Ledger.open(folder / "secret" / "ledger.sqlite").charges())
    assert [token for token, _ in charged] == [1, 2, 3, 4, 5, 6]
    assert [entry.step for entry in run.history] == [1, 2, 4, 5, 6]  # the third round was charged and lost
    assert run.statement()["epsilon"] == made.epsilon


processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["apportion.federated.federated_training", "torch", "torch._dynamo", "federation"])


@pytest.mark.parametrize("recovery", ["fresh", "exact"])
def test_a_server_that_is_killed_in_a_round_resumes_and_hides_no_spending(tmp_path, recovery):
    """SIGKILL while clients train: what was charged stays charged, and the round is taken again with a token of its own."""
    folder = tmp_path / "run"
    lives = ((False, 7, -signal.SIGKILL, 2), (True, 2, -signal.SIGKILL, 3), (True, 0, 0, 7))
    for resume, deadly, code, charged in lives:
        child = processes.Process(target=life, args=(folder, recovery, resume, deadly))
        child.start()
        child.join(120)
        assert child.exitcode == code
        ledger = Ledger.open(folder / "secret" / "ledger.sqlite")
        assert ledger.verify() is None
        assert len(list(ledger.charges())) == charged
        ledger.close()
    assert not (folder / "secret" / "key").exists()


def test_an_update_strategy_and_a_scheduler_serve_the_server():
    model = server()
    run = trained(
        plan(replace(named("abadi"), update=ap.update.Plain(average=0.5))),
        model=model,
        optimizer="momentum",
        scheduler=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5),
        lr=0.5,
    )
    assert [entry.learning_rate[0] for entry in run.history] == pytest.approx([0.5**power for power in range(1, 6)])
    assert run.averaged is not None


def test_reply_is_a_plain_tuple():
    assert tuple(Reply("name", 3, None)) == ("name", 3, None)
