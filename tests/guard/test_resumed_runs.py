"""A run that goes on after a crash: what it draws again it pays for again, and no stored bit comes back under another question."""

import copy
import json
import math
import shutil
import sqlite3

import pytest
import torch
from scipy.stats import norm
from torch.nn.functional import cross_entropy

import apportion as ap
import runs
from apportion.accounting.account import Account
from apportion.accounting.ledger import Ledger
from apportion.accounting.rules import FixedPlan
from apportion.releases import Line, LowestLoss
from apportion.request import Released, Request
from apportion.training.exact import ExactCurator
from runs import Recovery

STEPS = 6


def charged_tokens(folder):
    """The tokens that are spent, in order, as the file says."""
    connection = sqlite3.connect(f"file:{folder / 'secret/ledger.sqlite'}?mode=ro", uri=True)
    rows = connection.execute("SELECT step FROM entries WHERE run > 0 AND step > 0 ORDER BY number").fetchall()
    connection.close()
    return [step for (step,) in rows]


class Power(Exception):
    """The power fails."""


def start(folder, model, data, *, mode="fresh", spare=2, crash_after=None, resume=False, lr=0.5, clip=None):
    """Run until the crash, keeping every checkpoint. Returns what was released and the run, or None."""
    released, applied, snapshot = [], [], folder.with_name(folder.name + ".crashed")

    def watched(parameters, lr):
        optimizer = torch.optim.SGD(parameters, lr=lr)

        def before(*_):
            if crash_after is not None and len(applied) >= crash_after:
                shutil.copytree(folder, snapshot)  # as it lies on the disk: nothing is saved on the way out
                raise Power
            released.append(torch.cat([p.grad.flatten() for p in parameters]).clone())

        def after(*_):
            applied.append(1)

        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)
        return optimizer

    options = {
        "budget": ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record()),
        "population": 40,
        "sample_rate": 1.0,  # the price of a run on all records is in closed form: nothing to wait for
        "steps": STEPS,
        "lr": lr,
        "optimizer": watched,
        "recovery": Recovery(mode=mode, spare=spare, every=1),
        "out": folder,
        "resume": resume,
        "clip": clip,
    }
    try:
        return released, runs.train(model, cross_entropy, data, **options)
    except Power:
        shutil.rmtree(folder)
        snapshot.rename(folder)
        return released, None


@pytest.fixture
def fresh_model(model):
    return lambda: copy.deepcopy(model)


def test_steps_that_are_taken_again_are_new_draws_and_are_paid_again(fresh_model, records, tmp_path):
    folder = tmp_path / "run"
    start(folder, fresh_model(), records, crash_after=2)
    assert charged_tokens(folder) == [1, 2, 3], "the step that was drawn when the power failed is charged"
    again, run = start(folder, fresh_model(), records, resume=True)
    assert charged_tokens(folder) == [1, 2, 3, STEPS + 1, 4, 5, 6], (
        "step 3 was drawn twice, and the second time paid by a spare"
    )
    assert len(again) == 4
    assert run.epsilon() <= 3.0
    facts = json.loads((folder / "public/privacy.json").read_text())
    assert facts["epsilon_spent"] == run.epsilon() <= facts["epsilon"] <= 3.0


def test_an_older_checkpoint_refunds_nothing_and_repeats_nothing(fresh_model, records, tmp_path):
    """Back to the checkpoint of step 1 after step 3: the two lost steps cost the two spare tokens, and have new noise."""
    folder = tmp_path / "run"
    start(folder, fresh_model(), records, crash_after=1)
    kept = (folder / "secret/checkpoint").read_bytes()
    lost, _ = start(folder, fresh_model(), records, crash_after=1, resume=True)
    (folder / "secret/checkpoint").write_bytes(kept)
    spent = len(charged_tokens(folder))
    again, run = start(folder, fresh_model(), records, resume=True)
    tokens = charged_tokens(folder)
    assert len(set(tokens)) == len(tokens) == STEPS + 2, "a token was spent twice, or a draw was not paid"
    assert len(tokens) == spent + len(again), "every draw after the crash was charged"
    assert not any(torch.equal(one, other) for one in lost for other in again), "the same noise came back"
    assert run.epsilon() <= 3.0


def test_without_spare_tokens_a_crash_loses_steps_and_never_budget(fresh_model, records, tmp_path):
    folder = tmp_path / "run"
    start(folder, fresh_model(), records, spare=0, crash_after=2)
    again, run = start(folder, fresh_model(), records, spare=0, resume=True)
    assert charged_tokens(folder) == [1, 2, 3, 4, 5, 6]
    assert len(again) == 3, "step 3 is lost"
    assert run.epsilon() <= 3.0


def test_exact_recovery_repeats_the_same_draw_and_pays_once(fresh_model, records, tmp_path):
    folder = tmp_path / "run"
    start(folder, fresh_model(), records, mode="exact", crash_after=1)
    kept = (folder / "secret/checkpoint").read_bytes()
    lost, _ = start(folder, fresh_model(), records, mode="exact", crash_after=1, resume=True)
    (folder / "secret/checkpoint").write_bytes(kept)
    spent = charged_tokens(folder)
    again, run = start(folder, fresh_model(), records, mode="exact", resume=True)
    assert torch.equal(lost[0], again[0]), "the same question has another answer"
    assert charged_tokens(folder) == [*spent, *range(len(spent) + 1, STEPS + 1)], "a repeated draw is not paid twice"
    assert run.epsilon() <= 3.0
    assert not (folder / "secret/key").exists(), "a finished run keeps its key"


def test_exact_recovery_never_uses_a_stream_for_another_question(fresh_model, records, tmp_path):
    """Two answers that differ in one record and have the same noise would give the record away: their difference is no noise."""
    folder = tmp_path / "run"
    start(folder, fresh_model(), records, mode="exact", crash_after=1, lr=1e-6)
    shutil.copytree(folder, tmp_path / "other")
    flipped = records[1].clone()
    flipped[0] = 1 - flipped[0]
    one, run = start(folder, fresh_model(), records, mode="exact", resume=True, lr=1e-6)
    other, _ = start(tmp_path / "other", fresh_model(), (records[0], flipped), mode="exact", resume=True, lr=1e-6)
    # The weights hardly move, so that an old stream could not hide behind another gradient.
    noise = (
        run.history[0].noise_multiplier / 40 * len(one[0]) ** 0.5
    )  # of a whole gradient; one record moves it by 2/40 at most
    assert noise > 0.2
    assert all(float((a - b).norm()) > noise / 2 for a in one for b in other)
    tokens = charged_tokens(tmp_path / "other")
    assert len(set(tokens)) == len(tokens)


@pytest.mark.parametrize(
    "clip", [ap.clip.Fixed(0.01), ap.clip.NormBased(0.01, headroom=1000.0)], ids=["gradient", "norms"]
)
def test_a_statistic_is_part_of_the_answer_that_is_repeated(records, tmp_path, clip):
    """The crash comes after the first answer, then every record is doubled. Weights of zero and a small threshold make the clipped
    gradient the same to the last bit, so it may come again; a sum of norms under the same noise would tell what was changed."""
    model, folder = torch.nn.Linear(4, 2, bias=False), tmp_path / "run"
    torch.nn.init.zeros_(model.weight)
    lost, _ = start(folder, copy.deepcopy(model), records, mode="exact", crash_after=0, clip=clip)
    doubled = (2 * records[0], records[1])
    again, _ = start(folder, model, doubled, mode="exact", resume=True, clip=clip)
    assert lost == []  # it was noted, and the power failed before it was applied
    if isinstance(clip, ap.clip.Fixed):
        assert charged_tokens(folder) == [1, 2, 3, 4, 5, 6], "the same answer is not paid twice"
    else:
        assert charged_tokens(folder) == [1, STEPS + 1, 2, 3, 4, 5, 6], "another answer is drawn and paid anew"
    assert len(again) == STEPS


def test_a_run_goes_on_only_with_its_own_ledger(fresh_model, records, tmp_path):
    """An older copy of the ledger would refund what was charged since."""
    folder = tmp_path / "run"
    start(folder, fresh_model(), records, crash_after=1)
    older = (folder / "secret/ledger.sqlite").read_bytes()
    start(folder, fresh_model(), records, crash_after=2, resume=True)
    (folder / "secret/ledger.sqlite").write_bytes(older)
    with pytest.raises(ap.InvalidArgument, match="ledger"):
        start(folder, fresh_model(), records, resume=True)


def test_a_run_does_not_go_on_with_other_settings(fresh_model, records, tmp_path):
    folder = tmp_path / "run"
    start(folder, fresh_model(), records, crash_after=1)
    for change in ({"lr": 0.1}, {"spare": 3}, {"mode": "exact"}):
        with pytest.raises(ap.InvalidArgument):
            start(folder, fresh_model(), records, resume=True, **change)
    assert len(charged_tokens(folder)) == 2


def test_spare_tokens_are_part_of_the_price(fresh_model, records, tmp_path):
    """Even if every one of them is needed, the run costs what was promised: without sampling μ² = Σ 1/z² over all tokens."""
    _, run = start(tmp_path / "run", fresh_model(), records, spare=5)
    multipliers, epsilon = [entry.noise_multiplier for entry in run.history], run.statement()["epsilon"]
    mu = math.sqrt(sum(z**-2 for z in multipliers) + 5 * min(multipliers) ** -2)
    delta = norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)
    assert delta == pytest.approx(1e-5, rel=1e-6)
    assert epsilon <= 3.0


@pytest.mark.parametrize(("index", "charges"), [(1, 1), (2, 2)], ids=["the same index", "another index"])
def test_a_chosen_index_is_part_of_the_answer_that_is_repeated(tmp_path, index, charges):
    """After a crash the same question about changed records has another answer under the same noise: it is burnt, and a new draw paid."""
    line = Line({"weight": torch.zeros(2)}, (0.0, 0.5, 1.0))
    request = Request(0.5, math.inf, 20.0, (LowestLoss(line, 1.0, 0.1),))
    budget, tokens = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record()), [request.event()] * 2

    class Answers:
        """A curator whose records choose for it."""

        def __init__(self, books, index):
            self.books, self.index = books, index

        def answer(self, request, loss_fn):
            self.books.charge(request.event())
            return Released(request, {}, (), (self.index,))

    def answered(index, ledger):
        account = Account(budget, FixedPlan(tokens, spare=1), ledger, identifier="mine")
        curator = ExactCurator(lambda books: Answers(books, index), account, tmp_path, dict, lambda: request)
        curator.begin(ended=False)
        curator.answer(request, None)
        return account.spent

    (tmp_path / "secret").mkdir()
    ledger = Ledger.create(tmp_path / "secret/ledger.sqlite")
    assert answered(1, ledger) == 1
    assert answered(index, ledger) == charges
