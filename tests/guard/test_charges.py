"""The books of a whole run: one durable charge for each draw, before the draw, and a price that somebody else computes from them."""

import copy
import json
import signal
import sqlite3

import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
import runs
from apportion.accounting.ledger import Ledger
from apportion.cli.main import main
from apportion.curator import mechanisms
from apportion.training.statement import show_epsilon

LEDGER = "secret/ledger.sqlite"
SMALL = {"population": 40, "sample_rate": 0.25, "steps": 6}


def charges(folder):
    """[(q, z)] of every charged step, read from the file by a connection of its own: only what is committed is seen."""
    connection = sqlite3.connect(f"file:{folder / LEDGER}?mode=ro", uri=True)
    rows = connection.execute("SELECT content FROM entries WHERE run > 0 AND step > 0 ORDER BY number").fetchall()
    connection.close()
    contents = [json.loads(content) for (content,) in rows]
    return [(c["sample_rate"], c["noise_multiplier"]) for c in contents if "noise_multiplier" in c]


def independent(events, delta, *, upper):
    """ε by Google's dp_accounting: from above, or (rounded the other way) from below."""
    total = None
    for rate, multiplier in sorted(set(events)):
        one = privacy_loss_distribution.from_gaussian_mechanism(
            multiplier,
            sampling_prob=rate,
            value_discretization_interval=1e-3,
            pessimistic_estimate=upper,
            use_connect_dots=upper,
        ).self_compose(events.count((rate, multiplier)))
        total = one if total is None else total.compose(one)
    return total.get_epsilon_for_delta(delta)


def require_price(epsilon, events, delta):
    """Not below what the events cost at least, and not far above what they cost at most."""
    assert independent(events, delta, upper=False) * (1 - 1e-9) <= epsilon
    assert epsilon <= independent(events, delta, upper=True) * 1.005


def loop(run, *, stop_after=None):
    for number, (x, y) in enumerate(run.batches(), 1):
        run.optimizer.zero_grad()
        cross_entropy(run.model(x), y).backward()
        run.optimizer.step()
        if number == stop_after:
            break


def make_private(model, data, **options):
    return runs.make_private(model, torch.optim.SGD(model.parameters(), lr=0.5), data, **options)


class Watched(torch.utils.data.Dataset):
    """Notes how many steps were charged when a record is read."""

    def __init__(self, records, folder):
        self.records, self.folder, self.seen = records, folder, []
        self.watching = False

    def __len__(self):
        return len(self.records[0])

    def __getitem__(self, index):
        if self.watching:
            self.seen.append(len(charges(self.folder)))
        return self.records[0][index], self.records[1][index]


@pytest.mark.parametrize("tier", ["train", "make_private"])
def test_a_step_is_charged_on_disk_before_its_records_are_read_and_before_it_is_released(
    model, records, budget, tmp_path, monkeypatch, tier
):
    folder, released = tmp_path / "run", []
    data = Watched(records, folder)
    right = mechanisms.add_gaussian_noise
    monkeypatch.setattr(
        mechanisms, "add_gaussian_noise", lambda *a: released.append(len(charges(folder))) or right(*a)
    )  # one call for each of four parameters
    draws = []

    def loss(outputs, targets):
        return cross_entropy(outputs, targets)

    if tier == "train":
        data.watching = True
        monkeypatch.setattr(Watched, "__getitem__", _only_after_the_ledger_exists(Watched.__getitem__, folder))
        runs.train(model, loss, data, budget=budget, lr=0.5, out=folder, **SMALL)
    else:
        run = make_private(model, data, budget=budget, out=folder, **SMALL)
        data.watching = True
        for x, y in run.batches():
            draws.append(len(charges(folder)))
            cross_entropy(run.model(x), y).backward()
            run.optimizer.step()
        assert sorted(draws) == draws
    assert released == [step for step in range(1, 7) for _ in range(4)], (
        "an answer that was not charged, or charged twice"
    )
    assert data.seen == sorted(data.seen)
    assert min(data.seen) >= 1
    assert len(charges(folder)) == 6


def _only_after_the_ledger_exists(read, folder):
    """The first record is looked at once, for its shape, before anything begins."""

    def wrapped(self, index):
        self.watching = (folder / LEDGER).exists()
        return read(self, index)

    return wrapped


@pytest.mark.parametrize("rate", [1e-6, 0.02, 0.5])
@pytest.mark.parametrize("tier", ["train", "make_private"])
def test_empty_and_full_draws_are_charged_noised_and_applied_alike(
    model, records, budget, tmp_path, monkeypatch, tier, rate
):
    before, calls = copy.deepcopy(model), []
    right = mechanisms.add_gaussian_noise

    def counted(*arguments):
        calls.append(1)
        assert len(calls) <= 6 * 4, "more answers than steps: a step that is not charged never ends"
        return right(*arguments)

    monkeypatch.setattr(mechanisms, "add_gaussian_noise", counted)
    options = SMALL | {"sample_rate": rate, "noise": ap.noise.Constant(5.0), "out": tmp_path / "run", "budget": budget}
    if tier == "train":
        run = runs.train(model, cross_entropy, records, lr=0.5, **options)
    else:
        run = make_private(model, records, **options)
        loop(run)
    assert charges(tmp_path / "run") == [(rate, 5.0)] * 6
    assert len(run.history) == run.steps == 6
    for old, new in zip(before.parameters(), model.parameters(), strict=True):
        assert (old != new).all(), "a step without noise"


@pytest.mark.usual_pieces
def test_a_loop_that_is_left_has_paid_for_what_it_drew_and_draws_anew(model, records, budget, tmp_path):
    run = make_private(model, records, budget=budget, out=tmp_path / "run", **(SMALL | {"sample_rate": 1.0}))
    loop(run, stop_after=2)
    assert len(charges(tmp_path / "run")) == 2
    with pytest.raises(RuntimeError, match="mine"):
        for _ in run.batches():
            raise RuntimeError("mine")
    assert len(charges(tmp_path / "run")) == 3, "the draw that was seen and never released is paid"
    loop(run)
    assert len(charges(tmp_path / "run")) == 6, "nothing was refunded"
    assert run.steps_left == 0


def test_an_interrupted_run_keeps_its_charges_and_its_price(model, records, budget, tmp_path):
    calls = []

    def loss(outputs, targets):
        calls.append(1)
        if len(calls) == 60:
            signal.raise_signal(signal.SIGINT)
        return cross_entropy(outputs, targets)

    with pytest.raises(KeyboardInterrupt):
        runs.train(model, loss, records, budget=budget, lr=0.5, out=tmp_path / "run", **(SMALL | {"steps": 90}))
    events = charges(tmp_path / "run")
    assert 1 < len(events) < 90
    facts = json.loads((tmp_path / "run/public/privacy.json").read_text())
    assert facts["draws_charged"] == len(events)
    require_price(facts["epsilon_spent"], events, 1e-5)
    assert 0.99 * 3.0 <= facts["epsilon"] <= 3.0, "the promise is that of the whole plan"


@pytest.mark.parametrize("name", ["abadi", "lin-decay", "du-growing", "du-sensitivity", "du-dynamic"])
def test_the_price_in_a_run_folder_is_what_somebody_else_computes_from_its_ledger(model, records, tmp_path, name):
    budget = ap.Budget(epsilon=2.5, delta=3e-6, unit=ap.Record())
    recipe = ap.recipes.named(name)
    run = runs.train(
        model,
        cross_entropy,
        records,
        budget=budget,
        population=50,
        batch_size=10,
        epochs=0.8,
        lr=0.5,
        clip=recipe.clip,
        noise=recipe.noise,
        out=tmp_path / "run",
    )
    events = charges(tmp_path / "run")
    facts = json.loads((tmp_path / "run/public/privacy.json").read_text())
    configuration = json.loads((tmp_path / "run/public/configuration.json").read_text())
    history = json.loads((tmp_path / "run/public/history.json").read_text())
    require_price(facts["epsilon"], events, 3e-6)
    require_price(history[0]["epsilon"], events[:1], 3e-6)
    assert 0.99 * 2.5 <= facts["epsilon"] <= 2.5
    assert facts["epsilon"] == facts["epsilon_spent"] == run.epsilon() == history[-1]["epsilon"]
    plan = configuration["plan"]
    for key, value in {"delta": 3e-6, "sample_rate": 0.2, "population": 50}.items():
        assert facts[key] == (plan["budget"] | plan["sampling"])[key] == value
    assert facts["expected_batch_size"] == 10.0
    assert (facts["target_epsilon"], plan["budget"]["epsilon"]) == (2.5, 2.5)
    assert (
        facts["steps_taken"] == facts["steps_planned"] == plan["sampling"]["steps"] == len(events) == len(history) == 4
    )
    assert [(0.2, entry["noise_multiplier"]) for entry in history] == events
    assert [z for z, times in plan["multipliers"] for _ in range(times)] == [z for _, z in events]
    assert (facts["noise"]["first"], facts["noise"]["last"]) == (events[0][1], events[-1][1])
    assert show_epsilon(facts["epsilon"]) in (tmp_path / "run/public/privacy.md").read_text()


def test_the_price_so_far_is_that_of_the_steps_so_far(model, records, budget, tmp_path):
    schedule = {"noise": ap.noise.GrowingMu(ratio=3.0), "clip": ap.clip.Fixed(0.5)}
    run = make_private(model, records, budget=budget, out=tmp_path / "run", **schedule, **SMALL)
    for step in range(1, 5):
        for x, y in run.batches(steps=1):
            cross_entropy(run.model(x), y).backward()
            run.optimizer.step()
        events = charges(tmp_path / "run")
        assert len(events) == step == run.steps
        if step in (1, 4):
            require_price(run.epsilon(10.0 ** -(4 + step)), events, 10.0 ** -(4 + step))


def test_looking_changes_nothing(model, records, budget, tmp_path):
    """Reading ε, the statement or the history in between, or not at all, gives the same run."""

    def final(curious):
        trained = copy.deepcopy(model)
        run = make_private(trained, records, budget=budget, seed=3, **SMALL)
        for _ in range(3):
            for x, y in run.batches(steps=2):
                cross_entropy(run.model(x), y).backward()
                run.optimizer.step()
            if curious:
                before = run._session.account.ledger.head(), run.steps, run.steps_left
                assert run.epsilon() == run.epsilon()
                assert run.epsilon(1e-9) > run.epsilon()
                assert run.statement() == run.statement()
                assert len(run.history) == run.steps
                repr(run.run)
                assert (run._session.account.ledger.head(), run.steps, run.steps_left) == before
        return (
            [p.detach().clone() for p in trained.parameters()],
            run.epsilon(),
            [entry.as_json() for entry in run.history],
        )

    (plain, price, history), (watched, same_price, same_history) = final(False), final(True)
    assert all(torch.equal(one, other) for one, other in zip(plain, watched, strict=True))
    assert price == same_price
    assert history == same_history


def test_a_spent_plan_reads_nothing_more(model, records, budget, tmp_path):
    data = Watched(records, tmp_path / "run")
    run = make_private(model, data, budget=budget, out=tmp_path / "run", **SMALL)
    loop(run)
    data.watching, data.seen = True, []
    with pytest.raises(ap.BudgetExhausted):
        run._session.curator.answer(run._session.next_request(), cross_entropy)
    assert data.seen == []
    assert len(charges(tmp_path / "run")) == 6


def test_the_command_line_pays_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = "train --data digits --model linear --recipe du-growing --epsilon 1.5 --delta 2e-6 --unit record --population 1500"
    with pytest.raises(SystemExit) as stop:
        main([*arguments.split(), "--batch-size", "150", "--steps", "4", "--lr", "1", "--out", "run", "--json"])
    assert not stop.value.code
    printed = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    events = charges(tmp_path / "run")
    assert len(events) == 4
    assert {rate for rate, _ in events} == {0.1}
    assert printed["epsilon"] <= 1.5
    require_price(printed["epsilon"], events, 2e-6)
    facts = json.loads((tmp_path / "run/public/privacy.json").read_text())
    assert (facts["epsilon"], facts["delta"], facts["target_epsilon"]) == (printed["epsilon"], 2e-6, 1.5)


def test_a_ledger_waits_for_the_disk(tmp_path):
    """Killing a process cannot show it, pulling the plug would: rows are synchronised, and the journal's folder with them."""
    for ledger in (Ledger.create(tmp_path / "new.sqlite"), Ledger.attach(tmp_path / "new.sqlite")):
        assert ledger._chain.execute("PRAGMA synchronous") == [(3,)]
        assert ledger._chain.execute("PRAGMA journal_mode") == [("delete",)]
        ledger.close()


def test_a_loop_cannot_step_past_the_books(model, records, budget):
    """Raw gradients of the plain model, whatever put them there, are never applied."""
    run = make_private(model, records, budget=budget, **SMALL)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    cross_entropy(nn.Module.__call__(model, records[0]), records[1]).backward()
    with pytest.raises(ap.WrongOrder):
        run.optimizer.original.step()
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
    assert run.steps == 0
