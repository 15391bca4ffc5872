"""Going on after a crash: what is restored, what is refused, and what it costs. (Crashes themselves: test_crash.py.)"""

import errno
import hashlib
import json
import os
from dataclasses import dataclass

import pytest
import torch
from crash_child import train
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
import runs
from apportion.accounting.ledger import Ledger
from apportion.accounting.run_filter import GaussianRuns
from apportion.curator import mechanisms
from apportion.curator.clipping import clip_and_sum
from apportion.curator.randomness import poisson_sample
from apportion.releases import ClippedSum
from apportion.training import checkpoint
from apportion.training.checkpoint import read_checkpoint
from apportion.training.exact import DrawBook
from apportion.training.packing import pack, unpack

STEPS = 12


class Died(BaseException):
    """Stands for a crash that the process survives, so that a test can look."""


class Falling:
    """Thresholds that follow what was released, and a state with everything a state may hold."""

    def init(self, context):
        return {"number": 0, "mean": torch.zeros(3), "past": (1.0,), 7: [True, None, "text"]}

    def propose(self, state, context):
        return (ClippedSum(threshold=1.0 / (1 + state["number"] + float(state["mean"].abs().sum()))),)

    def observe(self, state, released):
        mean = 0.5 * state["mean"] + 0.5 * next(iter(released.gradient.values())).flatten()[:3]
        return {**state, "number": state["number"] + 1, "mean": mean, "past": (*state["past"], 0.1)}


@dataclass(frozen=True)
class Sudden:
    """`Falling` as the configuration sees it, but it dies: the death is not a setting."""

    inner = Falling()
    deaths = ()

    def init(self, context):
        return self.inner.init(context)

    def propose(self, state, context):
        return self.inner.propose(state, context)

    def observe(self, state, released):
        if state["number"] + 1 in type(self).deaths and next(iter(released.gradient.values())).any():
            raise Died  # but not in the rehearsal, whose answers are zeros
        return self.inner.observe(state, released)


@pytest.fixture
def dies(monkeypatch):
    return lambda *steps: monkeypatch.setattr(Sudden, "deaths", steps)


def interrupted(folder, dies, *, mode="fresh", spare=5, at=6):
    """Died in step `at`, after it was handed out. (An orderly exception: a checkpoint is written on the way out.)"""
    dies(at)
    with pytest.raises(Died):
        train(folder, mode, False, STEPS, spare, Sudden())
    dies()


def test_a_run_goes_on_where_it_stopped(tmp_path, dies):
    interrupted(tmp_path / "run", dies)
    state = read_checkpoint(tmp_path / "run" / "secret" / "checkpoint")
    assert state["step"] == 6
    assert state["clip"]["number"] == 5, "the sixth value was lost before the strategy had learned from it"
    run = train(tmp_path / "run", "fresh", True, STEPS, 5, Sudden())
    assert run.steps == STEPS
    assert [entry.step for entry in run.history] == [*range(1, 6), *range(7, STEPS + 1)]
    ledger = Ledger.open(tmp_path / "run" / "secret" / "ledger.sqlite")
    assert [token for token, _ in ledger.charges()] == list(range(1, STEPS + 1))
    ledger.close()
    assert run.epsilon() <= run.statement()["epsilon"] <= 3.0


def test_the_state_comes_back_bit_for_bit(tmp_path, dies, monkeypatch):
    interrupted(tmp_path / "run", dies)
    saved = read_checkpoint(tmp_path / "run" / "secret" / "checkpoint")
    seen = {}

    def look(session, *arguments):
        seen.update(session.state())

    monkeypatch.setattr("apportion.training.train.take_steps", look)
    train(tmp_path / "run", "fresh", True, STEPS, 5, Sudden())
    moving = {
        key: saved[key] for key in ("step", "model", "optimizer", "scheduler", "usable", "clip", "noise", "update")
    }
    assert pack(moving) == pack(seen)
    assert saved["optimizer"]["state"][0]["momentum_buffer"].abs().sum() > 0
    assert saved["scheduler"]["last_epoch"] == 5, "a step whose clip could not observe it changes nothing"


def test_a_finished_run_is_left_as_it_is(tmp_path):
    first = train(tmp_path / "run", "fresh", False, STEPS, 0)
    again = train(tmp_path / "run", "fresh", True, STEPS, 0)
    assert again.steps == STEPS
    assert torch.equal(first.model[0].weight, again.model[0].weight)
    assert len(again.history) == STEPS
    ledger = Ledger.open(tmp_path / "run" / "secret" / "ledger.sqlite")
    assert len(list(ledger.events())) == STEPS
    ledger.close()


def older_checkpoint(folder, dies, spare, mode="fresh"):
    """Interrupted in step 8, then put back to the checkpoint of step 3, as after a SIGKILL or by somebody who wants a refund."""
    kept = {}
    write = checkpoint.Checkpoints.write

    def keep(self, state):
        write(self, state)
        kept.setdefault(state["step"], (folder / "secret" / "checkpoint").read_bytes())

    checkpoint.Checkpoints.write = keep
    try:
        interrupted(folder, dies, spare=spare, at=8, mode=mode)
    finally:
        checkpoint.Checkpoints.write = write
    (folder / "secret" / "checkpoint").write_bytes(kept[3])


def tokens_of(folder):
    ledger = Ledger.open(folder / "secret" / "ledger.sqlite")
    try:
        return [token for token, _ in ledger.charges()]
    finally:
        ledger.close()


@pytest.mark.parametrize(
    ("spare", "paid", "taken"),
    [
        (5, [13, 14, 15, 16, 17, 9, 10, 11, 12], [4, 5, 6, 7, 8, 9, 10, 11, 12]),
        (2, [13, 14, 9, 10, 11, 12], [4, 5, 9, 10, 11, 12]),
        (0, [9, 10, 11, 12], [9, 10, 11, 12]),
    ],
)
def test_an_older_checkpoint_refunds_nothing(tmp_path, dies, spare, paid, taken):
    """Steps 4 to 8 are taken again as far as spare tokens pay for them; the others are lost."""
    older_checkpoint(tmp_path / "run", dies, spare)
    assert tokens_of(tmp_path / "run") == list(range(1, 9))
    run = train(tmp_path / "run", "fresh", True, STEPS, spare, Sudden())
    assert tokens_of(tmp_path / "run") == [*range(1, 9), *paid]
    assert [entry.step for entry in run.history] == [1, 2, 3, *taken]
    assert run.epsilon() <= run.statement()["epsilon"] <= 3.0


def test_spare_tokens_are_priced_into_the_plan(tmp_path):
    """Declared, they cost as if they were spent: theory gives 1.181 for 5,000 steps and 1.193 with 100 spare ones."""
    from apportion.sampling import Sampling
    from runs import make_plan

    sampling = Sampling(population=60_000, sample_rate=256 / 60_000, steps=5_000)
    budget = ap.Budget(epsilon=2.0, delta=1e-5, unit=ap.Record())
    prices = [
        make_plan(budget, sampling, ap.clip.Fixed(1.0), ap.noise.Constant(multiplier=1.2), spare=spare).epsilon
        for spare in (0, 100)
    ]
    assert prices == pytest.approx([1.181, 1.193], abs=1e-3)
    growing = make_plan(budget, Sampling(60_000, 0.01, 50), ap.clip.Fixed(1.0), ap.noise.GrowingMu(), spare=3)
    assert all(spare.covers(step) for spare in growing.tokens[50:] for step in growing.tokens[:50])
    assert growing.epsilon <= 2.0


def test_own_loops_go_on_too(tmp_path, records, budget):
    def private(resume):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        return runs.make_private(
            model,
            optimizer,
            records,
            budget=budget,
            population=40,
            sample_rate=0.25,
            steps=STEPS,
            scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 2),
            out=tmp_path / "run",
            recovery=runs.Recovery(every=1),
            resume=resume,
        )

    def loop(started, steps):
        for inputs, targets in started.batches(steps=steps):
            cross_entropy(started.model(inputs), targets).backward()
            started.optimizer.step()

    first = private(resume=False)
    loop(first, 5)
    second = private(resume=True)
    assert second.steps == 5
    assert torch.equal(first.model.module.weight, second.model.module.weight)
    assert second.optimizer.param_groups[0]["lr"] == first.optimizer.param_groups[0]["lr"] < 0.1
    loop(second, 7)
    assert second.steps == STEPS
    with pytest.raises(ap.InvalidArgument, match="charged already: another process"):
        loop(first, 1)


def test_a_run_on_a_shared_ledger_finds_itself_again(tmp_path, records, budget, dies):
    shared = tmp_path / "patients.sqlite"
    limit = ap.Budget(epsilon=9.0, delta=1e-4, unit=ap.Record())
    Ledger.create(shared, name="patients", rule=GaussianRuns(limit)).close()

    def go(folder, resume):
        torch.manual_seed(0)
        return runs.train(
            nn.Linear(4, 2),
            cross_entropy,
            records,
            budget=budget,
            population=40,
            sample_rate=0.25,
            steps=STEPS,
            lr=0.1,
            clip=Sudden(),
            out=folder,
            ledger=shared,
            resume=resume,
        )

    go(tmp_path / "other", False)
    dies(6)
    with pytest.raises(Died):
        go(tmp_path / "run", False)
    dies()
    run = go(tmp_path / "run", True)
    assert run.statement()["data_set"]["run"] == 2
    assert run.statement()["data_set"]["runs_admitted"] == 2
    assert len(tokens_of(tmp_path / "run")) == STEPS, "the run folder keeps a copy of its own charges"


def test_other_settings_are_refused(tmp_path, dies):
    interrupted(tmp_path / "run", dies)
    charged = tokens_of(tmp_path / "run")
    with pytest.raises(ap.InvalidArgument, match="started with plan.sampling.steps = 12, and now it is 13"):
        train(tmp_path / "run", "fresh", True, STEPS + 1, 5, Sudden())
    with pytest.raises(ap.InvalidArgument, match="started with plan.recipe.clip.kind = .*Sudden.*Fixed"):
        train(tmp_path / "run", "fresh", True, STEPS, 5, ap.clip.Fixed())
    with pytest.raises(ap.InvalidArgument, match="started with plan.spare = 5, and now it is 4"):
        train(tmp_path / "run", "fresh", True, STEPS, 4, Sudden())
    with pytest.raises(ap.InvalidArgument, match="started with recovery = 'fresh', and now it is 'exact'"):
        train(tmp_path / "run", "exact", True, STEPS, 5, Sudden())
    assert tokens_of(tmp_path / "run") == charged


def test_what_cannot_be_resumed(tmp_path, model, records, budget):
    settings = {"budget": budget, "population": 40, "sample_rate": 0.25, "steps": 4, "lr": 0.1}
    with pytest.raises(ap.InvalidArgument, match="no folder to go on from"):
        runs.train(model, cross_entropy, records, resume=True, **settings)
    with pytest.raises(ap.InvalidArgument, match="there is no checkpoint"):
        runs.train(model, cross_entropy, records, resume=True, out=tmp_path / "none", **settings)
    assert not (tmp_path / "none").exists()
    with pytest.raises(ap.InvalidArgument, match="a run with a seed"):
        runs.train(model, cross_entropy, records, resume=True, seed=1, out=tmp_path / "none", **settings)
    with pytest.raises(ap.InvalidArgument, match="repeated bit for bit"):
        runs.train(model, cross_entropy, records, recovery=runs.Recovery(mode="exact"), **settings)
    with pytest.raises(ap.InvalidArgument, match="spare=-1"):
        runs.train(model, cross_entropy, records, recovery=runs.Recovery(spare=-1), **settings)
    with pytest.raises(ap.InvalidArgument, match="recovery='exakt'.*exact"):
        ap.Storage(tmp_path / "none", recovery="exakt")
    with pytest.raises(ap.InvalidArgument, match="every=0"):
        ap.Storage(tmp_path / "none", every=0)
    with pytest.raises(ap.InvalidArgument, match="folder=3: it is not a path"):
        ap.Storage(3)


def test_an_older_copy_of_the_ledger_is_refused(tmp_path, dies):
    dies(2)
    with pytest.raises(Died):
        train(tmp_path / "run", "fresh", False, STEPS, 5, Sudden())
    older = (tmp_path / "run" / "secret" / "ledger.sqlite").read_bytes()
    dies(5)
    with pytest.raises(Died):
        train(tmp_path / "run", "fresh", True, STEPS, 5, Sudden())
    dies()
    (tmp_path / "run" / "secret" / "ledger.sqlite").write_bytes(older)
    with pytest.raises(ap.InvalidArgument, match="an older copy"):
        train(tmp_path / "run", "fresh", True, STEPS, 5, Sudden())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda content: b"", "no checkpoint"),
        (lambda content: b"PK\x03\x04" + content, "no checkpoint"),
        (lambda content: content[:-1], "does not match its hash"),
        (lambda content: content[:300] + bytes([content[300] ^ 1]) + content[301:], "does not match its hash"),
        (lambda content: content.replace(b"checkpoint 1", b"checkpoint 2", 1), "its format is '2'"),
    ],
)
def test_a_damaged_checkpoint_is_refused(tmp_path, dies, change, complaint):
    interrupted(tmp_path / "run", dies)
    file = tmp_path / "run" / "secret" / "checkpoint"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(ap.InvalidArgument, match=complaint):
        train(tmp_path / "run", "fresh", True, STEPS, 5, Sudden())


@pytest.mark.parametrize(("step", "history"), [(-3, None), (0, None), (1, None), (10**6, None), (-3, -3), (1, -3)])
def test_a_checkpoint_that_contradicts_its_own_history_is_refused(tmp_path, dies, step, history):
    """Also one that goes back to before the first step, where no token was declared."""
    interrupted(tmp_path / "run", dies)
    file = tmp_path / "run" / "secret" / "checkpoint"
    state = read_checkpoint(file)
    if history is not None:
        state["history"]["step"][-1] = history
    content = pack({**state, "step": step})
    file.write_bytes(
        b"apportion checkpoint 1\n%s\n" % hashlib.blake2b(content, digest_size=32).hexdigest().encode() + content
    )
    with pytest.raises(ap.InvalidArgument, match="its history and its charges"):
        train(tmp_path / "run", "fresh", True, STEPS, 5, Sudden())


def test_a_checkpoint_holds_no_code_and_no_random_state(tmp_path, dies):
    interrupted(tmp_path / "run", dies, mode="exact")
    content = (tmp_path / "run" / "secret" / "checkpoint").read_bytes()
    key = (tmp_path / "run" / "secret" / "key").read_bytes()
    assert key not in content
    assert key.hex().encode() not in content
    state = unpack(content.split(b"\n", 2)[2])
    assert set(state) == {
        "configuration",
        "usable",
        "step",
        "model",
        "optimizer",
        "scheduler",
        "clip",
        "noise",
        "update",
        "history",
        "account",
    }
    with pytest.raises(ap.InvalidArgument, match="holds data and no code"):
        pack({"state": [print]})


def test_a_state_that_cannot_be_kept_is_refused_before_anything_is_charged(tmp_path, records, model, budget):
    class Odd(ap.clip.Fixed):
        def init(self, context):
            return object()

    with pytest.raises(ap.InvalidArgument, match=r"state.clip='object'"):
        runs.train(
            model,
            cross_entropy,
            records,
            budget=budget,
            population=40,
            sample_rate=0.25,
            steps=4,
            lr=0.1,
            clip=Odd(),
            out=tmp_path / "run",
        )
    assert not list((tmp_path / "run").rglob("*.sqlite"))


@pytest.mark.parametrize(
    ("number", "complaint"), [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "Read-only file system")]
)
def test_a_full_disk_keeps_the_last_checkpoint(tmp_path, dies, monkeypatch, number, complaint):
    written = []

    def fsync(descriptor, right=os.fsync):
        written.append(descriptor)
        if len(written) > 6:  # two for each checkpoint: the file and its folder
            raise OSError(number, os.strerror(number))
        right(descriptor)

    monkeypatch.setattr(checkpoint.os, "fsync", fsync)
    with pytest.raises(ap.InvalidArgument, match=complaint):
        train(tmp_path / "run", "fresh", False, STEPS, 5, Sudden())
    monkeypatch.undo()
    assert read_checkpoint(tmp_path / "run" / "secret" / "checkpoint")["step"] == 6
    assert not list((tmp_path / "run").rglob("*.partial"))
    assert train(tmp_path / "run", "fresh", True, STEPS, 5, Sudden()).steps == STEPS


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_charged(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ap.InvalidArgument, match="cannot be written"):
        train(tmp_path / "file" / "run", "fresh", False, STEPS, 0)


def test_exact_repeats_the_lost_steps_without_paying(tmp_path, dies):
    folder = tmp_path / "run"
    older_checkpoint(folder, dies, spare=0, mode="exact")
    charged = tokens_of(folder)
    run = train(folder, "exact", True, STEPS, 0, Sudden())
    assert charged == list(range(1, 9))
    assert tokens_of(folder) == list(range(1, STEPS + 1))
    assert [entry.step for entry in run.history] == list(range(1, STEPS + 1))
    assert not (folder / "secret" / "key").exists(), "the key is deleted when the run has ended"


def test_exact_burns_a_draw_whose_value_comes_out_different(tmp_path, dies, monkeypatch):
    """Other data under the same coins and noise: the difference of the two answers would be noise-free."""
    folder = tmp_path / "run"
    older_checkpoint(folder, dies, spare=2, mode="exact")

    def doubled(rows, releases, *_):
        return {name: 2 * part for name, part in clip_and_sum(rows, releases).items()}

    monkeypatch.setattr("apportion.curator.curator.clip_and_sum", doubled)
    run = train(folder, "exact", True, STEPS, 2, Sudden())
    paid = tokens_of(folder)
    assert paid[:8] == list(range(1, 9))
    assert set(paid[8:10]) == {13, 14}, "steps 4 and 5 were drawn anew, with spare tokens"
    assert [entry.step for entry in run.history] == [1, 2, 3, 4, 5, *range(9, 13)]
    book = DrawBook.open(folder / "secret" / "draws.sqlite")
    assert book.candidates(4) == [13]


def test_exact_gives_another_question_another_stream(tmp_path, dies, monkeypatch):
    """The thread count is part of what a draw depends on: with another one nothing is repeated, and everything is paid."""
    folder = tmp_path / "run"
    older_checkpoint(folder, dies, spare=5, mode="exact")
    noises = []

    def listen(exact_sum, deviation, stream, divisor, right=mechanisms.add_gaussian_noise):
        exact, answer = exact_sum.double().clone(), right(exact_sum, deviation, stream, divisor)
        noises.append(answer * divisor - exact)
        return answer

    monkeypatch.setattr(mechanisms, "add_gaussian_noise", listen)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    train(folder, "exact", True, STEPS, 5, Sudden())
    assert tokens_of(folder) == [*range(1, 9), 13, 14, 15, 16, 17, 9, 10, 11, 12]
    values = torch.cat([noise.flatten() for noise in noises])
    assert len(values.unique()) == len(values)


def test_a_key_left_behind_by_a_run_that_had_ended_is_deleted(tmp_path, monkeypatch):
    """Died after the last checkpoint, before it could tidy up."""
    folder = tmp_path / "run"
    monkeypatch.setattr("apportion.training.session.Session.close", lambda self: None)
    train(folder, "exact", False, STEPS, 0)
    monkeypatch.undo()
    assert (folder / "secret" / "key").exists()
    assert train(folder, "exact", True, STEPS, 0).steps == STEPS
    assert not (folder / "secret" / "key").exists()


@pytest.mark.parametrize("mode", ["fresh", "exact"])
def test_coins_and_noise_are_independent_of_those_before_the_crash(tmp_path, dies, budget, monkeypatch, mode):
    """30,000 normals and 400 coins a step: correlations of 0.03 would show, and nothing is ever equal."""
    noises, draws = [], []

    def listen(exact_sum, deviation, stream, divisor, right=mechanisms.add_gaussian_noise):
        exact, answer = exact_sum.double().clone(), right(exact_sum, deviation, stream, divisor)
        noises.append(((answer * divisor - exact) / deviation).flatten())
        return answer

    def watch(records, rates, coins, groups=None, right=poisson_sample):
        members = right(records, rates, coins, groups)
        draws.append(tuple(members))
        return members

    monkeypatch.setattr(mechanisms, "add_gaussian_noise", listen)
    monkeypatch.setattr("apportion.curator.curator.poisson_sample", watch)
    inputs = torch.randn(400, 200)

    def go(resume):
        torch.manual_seed(0)
        return runs.train(
            nn.Linear(200, 150, bias=False),
            lambda outputs, targets: (outputs - targets).square().sum(1),
            (inputs, inputs[:, :150]),
            budget=budget,
            population=400,
            sample_rate=0.05,
            steps=6,
            lr=0.1,
            clip=Sudden(),
            out=tmp_path / "run",
            recovery=runs.Recovery(mode=mode, spare=3),
            resume=resume,
        )

    dies(3)
    with pytest.raises(Died):
        go(False)
    dies()
    go(True)
    assert len(noises) == len(draws) == 6
    correlations = torch.corrcoef(torch.stack(noises))
    assert (correlations - torch.eye(6)).abs().max() < 0.03
    assert torch.stack(noises).std(1) == pytest.approx(torch.ones(6).numpy(), abs=0.02)
    assert len(set(draws)) == 6
    assert all(len(set(one) & set(other)) < 10 for one in draws for other in draws if one != other)


def test_a_copy_of_the_folder_cannot_ask_the_draw_in_flight_about_other_records(tmp_path, dies, monkeypatch):
    """Charged but not handed out; then resumed twice. The noise of the lost draw must meet neither of the two again."""
    folder, noises = tmp_path / "run", []

    def listen(exact_sum, deviation, stream, divisor, right=mechanisms.add_gaussian_noise):
        exact, answer = exact_sum.double().clone(), right(exact_sum, deviation, stream, divisor)
        noises.append((answer * divisor - exact).flatten()[0].item())
        return answer

    monkeypatch.setattr(mechanisms, "add_gaussian_noise", listen)

    def fails(book, token, right=DrawBook.note, **content):
        if "value" in content and token == 5:
            raise Died
        right(book, token, **content)

    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(DrawBook, "note", fails)
        patch.setattr("apportion.training.run.Run.save", lambda *_: None)
        train(folder, "exact", False, STEPS, 5, Sudden())
    lost = noises[-1]
    noises.clear()
    train(folder, "exact", True, STEPS, 5, Sudden())
    assert all(abs(noise - lost) > 1e-9 for noise in noises)
    assert 13 in tokens_of(folder)


def test_the_key_stays_while_steps_can_be_repeated(tmp_path, dies):
    """All tokens are charged, but the checkpoint is behind: what was lost is repeated, and only then the key goes."""
    folder, kept = tmp_path / "run", {}
    write = checkpoint.Checkpoints.write

    def keep(self, state):
        write(self, state)
        kept.setdefault(state["step"], (folder / "secret" / "checkpoint").read_bytes())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint.Checkpoints, "write", keep)
        patch.setattr("apportion.training.session.Session.close", lambda self: None)
        first = train(folder, "exact", False, STEPS, 0, Sudden())
    (folder / "secret" / "checkpoint").write_bytes(kept[9])
    again = train(folder, "exact", True, STEPS, 0, Sudden())
    assert torch.equal(first.model[0].weight, again.model[0].weight)
    assert tokens_of(folder) == list(range(1, STEPS + 1))
    assert not (folder / "secret" / "key").exists()


def test_a_run_that_was_taken_over_leaves_the_folder_alone(tmp_path, dies):
    """Another process finishes the run meanwhile: the first one stops, and what the other published stays."""
    folder = tmp_path / "run"
    meanwhile = []

    class Late(Sudden):
        def observe(self, state, released):
            if state["number"] == 5 and not meanwhile and next(iter(released.gradient.values())).any():
                meanwhile.append(True)
                meanwhile.append(train(folder, "fresh", True, STEPS, 4, Sudden()).statement()["draws_charged"])
            return super().observe(state, released)

    Late.__qualname__ = "Sudden"
    with pytest.raises(ap.InvalidArgument, match="another process spends the same run"):
        train(folder, "fresh", False, STEPS, 4, Late())
    facts = json.loads((folder / "public" / "privacy.json").read_text())
    assert facts["draws_charged"] == meanwhile[1] == len(tokens_of(folder))


def test_a_new_run_is_refused_where_a_crashed_one_lies(tmp_path, dies, records, budget):
    shared = tmp_path / "patients.sqlite"
    limit = ap.Budget(epsilon=9.0, delta=1e-4, unit=ap.Record())
    Ledger.create(shared, name="patients", rule=GaussianRuns(limit)).close()
    (tmp_path / "run" / "secret").mkdir(parents=True)
    (tmp_path / "run" / "secret" / "checkpoint").write_bytes(b"of an earlier run")
    with pytest.raises(ap.InvalidArgument, match="there is an earlier run already"):
        runs.train(
            nn.Linear(4, 2),
            cross_entropy,
            records,
            budget=budget,
            population=40,
            sample_rate=0.25,
            steps=4,
            lr=0.1,
            out=tmp_path / "run",
            ledger=shared,
        )
