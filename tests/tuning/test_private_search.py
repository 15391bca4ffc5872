"""A search on private records: charged as a whole, a secret number of trials, and nothing but the winner."""

import json
import math
import re
import shutil
from collections import Counter
from itertools import islice

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import cross_entropy

import apportion as ap
from apportion.accounting.ledger import Ledger
from apportion.accounting.run_filter import GaussianRuns
from apportion.accounting.selection import selection_epsilon
from apportion.errors import BudgetExhausted, InvalidArgument, TakenOver
from apportion.tuning import plan_search, private_search
from apportion.tuning.task import Task
from tuning.small_models import make_model

SPACE = {"lr": [0.25, 0.5, 1.0, 2.0]}
SCORES = [0.3, 0.9, 0.1, 0.7, 0.2]


class Crash(BaseException):
    """Ends a search at a place of our choice."""


@pytest.fixture
def five(monkeypatch):
    """Five trials, with made-up scores; counts the draws of K and the trials."""
    seen = {"draws": 0, "trials": 0, "weights": [], "fail_at": None}
    randbits, rank = private_search.secrets.randbits, Task.rank

    def five_trials(bits):
        seen["draws"] += 1
        randbits(bits)
        trials = ap.accounting.selection.NumberOfTrials(4)
        return int((sum(islice(trials.probabilities(), 4)) + 1e-6) * 2**bits)

    def made_up(task, session):
        if session.account.spent == 0:  # the rehearsal
            return rank(task, session)
        trial = seen["trials"]
        if seen["fail_at"] == trial:
            raise Crash
        seen["trials"] += 1
        seen["weights"].append([parameter.detach().clone() for parameter in session.model.parameters()])
        return SCORES[trial % len(SCORES)]

    monkeypatch.setattr(private_search.secrets, "randbits", five_trials)
    monkeypatch.setattr(Task, "rank", made_up)
    return seen


@pytest.fixture
def search(records, plan, evaluate, ledger, tmp_path):
    def run(**changed):
        settings = {"space": SPACE, "evaluate": evaluate, "expected_trials": 4} | changed
        settings.setdefault("storage", ap.Storage(tmp_path / "search", ledger=ledger))
        data, made, planned = (
            settings.pop(key, default) for key, default in (("data", records), ("model", make_model), ("plan", plan))
        )
        return ap.tune(made, cross_entropy, data, planned, **settings)

    return run


def admitted(ledger):
    books = Ledger.open(ledger)
    runs = books.runs()
    books.close()
    return runs


def test_the_winner_is_published_with_the_price_of_the_search(search, five, ledger, tmp_path, budget):
    tuned = search()
    assert five["trials"] == 5
    assert tuned.score == 0.9
    winner = five["weights"][1]
    assert all(torch.equal(a, b) for a, b in zip(tuned.run.model.parameters(), winner, strict=True))
    (run,) = admitted(ledger)
    assert 0.995 * budget.epsilon <= tuned.epsilon <= budget.epsilon
    assert run.cost.main == tuned.epsilon
    assert run.cost.failure == budget.delta
    statement = json.loads((tmp_path / "search/winner/public/privacy.json").read_text())
    for facts in (statement, tuned.statement(), tuned.run.statement()):
        assert facts["epsilon"] == facts["epsilon_spent"] == tuned.epsilon
        assert facts["search"]["expected_trials"] == 4
        assert facts["data_set"]["name"] == "patients"
        assert any("other trials" in item for item in facts["not_covered"])
    assert tuned.run.epsilon() == tuned.epsilon > 1.3 * tuned.price.trial_epsilon
    assert tuned.settings["lr"] in SPACE["lr"]
    assert "one run instead" in str(tuned)
    assert json.loads(tuned.to_json())["price"]["epsilon"] == tuned.epsilon


def test_the_noise_is_so_large_that_the_whole_search_meets_the_budget(plans, budget):
    """Against dp_accounting, and 5 % less noise does not meet it."""
    search = plan_search(plans, space={**SPACE, "sample_rate": [0.5, 1.0]}, expected_trials=6)
    prices = []
    for factor in (1.0, 0.95):
        tried = {
            tuple(Counter(ap.Event(e.sample_rate, factor * e.noise_multiplier) for e in one.tokens).items())
            for one in search.plans
        }
        prices.append(
            max(
                selection_epsilon(dict(events), budget.delta, expected_runs=6, score="public", runs="logarithmic")
                for events in tried
            )
        )
    assert prices[0] <= search.epsilon <= budget.epsilon
    assert prices[1] > budget.epsilon
    assert len(search.plans) == 16
    assert all(one.budget == budget for one in search.plans)


def test_a_trial_executes_the_noise_that_was_priced(search, five, tmp_path):
    tuned = search()
    books = Ledger.open(tmp_path / "search/winner/secret/ledger.sqlite")
    assert tuple(books.events()) == tuned.plan.tokens
    books.close()
    assert tuned.plan.multipliers[0] > 1.3 * tuned.price.space.plans[0].multipliers[0]


def test_losers_leave_nothing_behind(search, five, tmp_path):
    folder = tmp_path / "search"
    tuned = search()
    files = [path for path in folder.rglob("*") if path.is_file()]
    losers = [weights for trial, weights in enumerate(five["weights"]) if trial != 1]
    for path in files:
        content = path.read_bytes()
        assert not any(bytes(w[0].numpy().tobytes()) in content for w in losers), path
        assert not re.search(rb"0\.[1237](?!\d)", content if path.name == "search" else b""), path
    assert not list((folder / "secret").glob("trial-*"))
    state = json.loads((folder / "secret/search").read_text())
    assert len(state["order"]) == 1  # not how many there were, nor which
    assert oct((folder / "secret/search").stat().st_mode)[-3:] == "600"
    assert tuned.trials == ()
    kept = load_file(folder / "winner/public/weights.safetensors")
    assert torch.equal(kept["0.weight"], five["weights"][1][0])


def test_a_trial_that_is_no_better_is_never_written(search, five, tmp_path, monkeypatch):
    """Of a trial that is under way, or lost, no file ever holds weights."""
    written = []
    save = private_search.Run.save

    def watched(run, folder):
        written.append(folder.name)
        return save(run, folder)

    monkeypatch.setattr(private_search.Run, "save", watched)
    search()
    assert written == ["trial-0", "trial-1"]


def test_a_task_does_not_print_its_records(records, evaluate):
    assert "tensor" not in repr(Task(make_model, cross_entropy, records, evaluate, ap.Execution()))


def test_nothing_about_trials_is_shown(search, five, capfd):
    search(progress=True)
    out, err = capfd.readouterr()
    assert out == err == ""


@pytest.mark.parametrize("fail_at", [0, 1, 4])
def test_a_search_that_was_interrupted_goes_on_with_the_number_it_drew(search, five, ledger, tmp_path, fail_at):
    folder = tmp_path / "search"
    five["fail_at"] = fail_at
    with pytest.raises(Crash):
        search()
    before = json.loads((folder / "secret/search").read_text())
    assert len(before["order"]) == 5
    assert before["done"] == fail_at
    assert not (folder / "winner").exists()
    five["fail_at"] = None
    tuned = search(storage=ap.Storage(folder, ledger=ledger, resume=True))
    assert five["draws"] == 1
    assert five["trials"] == 5
    assert len(admitted(ledger)) == 1
    assert tuned.score == 0.9
    assert tuned.settings["lr"] == SPACE["lr"][before["order"][1]]
    assert all(torch.equal(a, b) for a, b in zip(tuned.run.model.parameters(), five["weights"][1], strict=True))


def test_a_crash_after_the_charge_draws_the_number_then(search, five, ledger, tmp_path, monkeypatch):
    def crash(plan):
        raise Crash

    with monkeypatch.context() as broken:
        broken.setattr(private_search, "_draw", crash)
        with pytest.raises(Crash):
            search()
    assert len(admitted(ledger)) == 1
    search(storage=ap.Storage(tmp_path / "search", ledger=ledger, resume=True))
    assert len(admitted(ledger)) == 1
    assert five["draws"] == 1


def test_a_crash_before_the_charge_is_charged_when_it_goes_on(search, five, ledger, tmp_path, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(private_search, "_charge", lambda *_: (_ for _ in ()).throw(Crash))
        with pytest.raises(Crash):
            search()
    assert admitted(ledger) == []
    assert five["draws"] == 0  # nobody learns a number that was not paid for
    search(storage=ap.Storage(tmp_path / "search", ledger=ledger, resume=True))
    assert len(admitted(ledger)) == 1


def test_a_finished_search_is_read_and_not_repeated(search, five, ledger, tmp_path):
    first = search()
    again = search(storage=ap.Storage(tmp_path / "search", ledger=ledger, resume=True))
    assert five["trials"] == 5
    assert again.settings == first.settings
    assert again.score == first.score
    assert all(
        torch.equal(a, b) for a, b in zip(again.run.model.parameters(), first.run.model.parameters(), strict=True)
    )
    assert len(admitted(ledger)) == 1


def test_a_winner_that_was_moved_away_is_not_trained_anew(search, five, ledger, tmp_path):
    """What would be trained is a second answer, and the ledger holds the price of one."""
    search()
    (tmp_path / "search/winner").rename(tmp_path / "elsewhere")
    with pytest.raises(InvalidArgument, match="winner"):
        search(storage=ap.Storage(tmp_path / "search", ledger=ledger, resume=True))
    assert five["trials"] == 5


def copied(folder):
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    return copy


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


@pytest.mark.parametrize("fail_at", [0, 1])
def test_two_copies_of_a_folder_publish_one_winner(search, five, ledger, tmp_path, fail_at):
    """Each would train trials and publish the best of them: two answers for one charge."""
    five["fail_at"] = fail_at
    with pytest.raises(Crash):
        search()
    copy = copied(tmp_path / "search")
    five["fail_at"] = None
    search(storage=ap.Storage(copy, ledger=ledger, resume=True))
    trials, before = five["trials"], files(tmp_path / "search")
    with pytest.raises(TakenOver, match="another copy"):
        search(storage=ap.Storage(tmp_path / "search", ledger=ledger, resume=True))
    assert five["trials"] == trials
    assert files(tmp_path / "search") == before
    assert len(admitted(ledger)) == 1


@pytest.mark.parametrize("stage", ["_charge", "_draw", "_claim"])
def test_copies_from_before_the_first_trial_draw_one_number(search, five, ledger, tmp_path, monkeypatch, stage):
    """Whoever finished first would have the smaller of two numbers, which has another distribution than the one that is priced."""
    with monkeypatch.context() as broken:
        broken.setattr(private_search, stage, lambda *_: (_ for _ in ()).throw(Crash))
        with pytest.raises(Crash):
            search()
    copy = copied(tmp_path / "search")
    search(storage=ap.Storage(tmp_path / "search", ledger=ledger, resume=True))
    with pytest.raises(TakenOver, match="another copy"):
        search(storage=ap.Storage(copy, ledger=ledger, resume=True))
    assert five["draws"] == 1
    assert len(admitted(ledger)) == 1


def test_a_process_that_was_overtaken_by_a_copy_publishes_nothing(search, five, ledger, tmp_path, monkeypatch):
    run, other = private_search._run, {}

    def overtaken(*arguments):
        monkeypatch.setattr(private_search, "_run", run)
        other["winner"] = search(storage=ap.Storage(copied(tmp_path / "search"), ledger=ledger, resume=True))
        return run(*arguments)

    monkeypatch.setattr(private_search, "_run", overtaken)
    with pytest.raises(TakenOver, match="another copy"):
        search()
    assert other["winner"].score == 0.9
    assert not (tmp_path / "search/winner").exists()


@pytest.mark.parametrize("stage", ["claim", "replace"])
def test_a_crash_around_the_publication_publishes_the_stored_winner(search, five, ledger, tmp_path, monkeypatch, stage):
    """Between the claim and the winner's folder, and before the claim: the same weights, also from a copy, and no trial is repeated."""
    claim, made = Ledger.claim, []

    def crash(*_):
        raise Crash

    def second(books, *arguments, **named):
        made.append(arguments)
        if len(made) == 2:
            raise Crash
        claim(books, *arguments, **named)

    with monkeypatch.context() as broken:
        if stage == "claim":
            broken.setattr(Ledger, "claim", second)
        else:
            broken.setattr(private_search, "_published", crash)
        with pytest.raises(Crash):
            search()
    assert not (tmp_path / "search/winner").exists()
    copy = copied(tmp_path / "search")
    for folder in (tmp_path / "search", copy):
        tuned = search(storage=ap.Storage(folder, ledger=ledger, resume=True))
        assert all(torch.equal(a, b) for a, b in zip(tuned.run.model.parameters(), five["weights"][1], strict=True))
        assert tuned.score == 0.9
    assert five["trials"] == 5
    assert len(admitted(ledger)) == 1


def test_other_weights_are_not_published_under_a_claim(search, five, ledger, tmp_path, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(private_search, "_published", lambda *_: (_ for _ in ()).throw(Crash))
        with pytest.raises(Crash):
            search()
    weights = tmp_path / "search/secret/trial-1/public/weights.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(TakenOver, match="another copy"):
        search(storage=ap.Storage(tmp_path / "search", ledger=ledger, resume=True))
    assert not (tmp_path / "search/winner").exists()


def test_a_search_in_memory_claims_its_winner_too(search, five, ledger):
    search(storage=ap.Storage(ledger=ledger))
    books = Ledger.open(ledger)
    claims = [row.step for row in books.rows() if row.step < 0]
    assert books.verify() is None
    assert not books.counts()
    books.close()
    assert claims == [-1, -2]


def test_a_second_process_is_refused(search, five, ledger, tmp_path):
    five["fail_at"] = 2
    with pytest.raises(Crash):
        search()
    with private_search._alone(tmp_path / "search"), pytest.raises(TakenOver, match="another process"):
        search(storage=ap.Storage(tmp_path / "search", ledger=ledger, resume=True))


@pytest.mark.parametrize(
    "changed", [{"space": {"lr": [0.25, 0.5, 1.0, 4.0]}}, {"expected_trials": 5}, {"distribution": "geometric"}]
)
def test_a_search_goes_on_with_its_own_settings_only(search, five, ledger, tmp_path, changed):
    five["fail_at"] = 2
    with pytest.raises(Crash):
        search()
    with pytest.raises(InvalidArgument, match="the search was started with"):
        search(storage=ap.Storage(tmp_path / "search", ledger=ledger, resume=True), **changed)


def test_a_search_goes_on_with_its_own_ledger_only(search, five, ledger, tmp_path):
    five["fail_at"] = 2
    with pytest.raises(Crash):
        search()
    other = tmp_path / "other.sqlite"
    Ledger.create(other, name="patients", rule=GaussianRuns(ap.Budget(epsilon=9, delta=1e-4, unit=ap.Record()))).close()
    with pytest.raises(InvalidArgument, match="does not hold this search"):
        search(storage=ap.Storage(tmp_path / "search", ledger=other, resume=True))
    assert admitted(other) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 2}', b'{"format": 1, "configuration": {}}'])
def test_a_damaged_state_is_refused(search, five, ledger, tmp_path, content):
    search()
    (tmp_path / "search/secret/search").write_bytes(content)
    with pytest.raises(InvalidArgument, match="damaged"):
        search(storage=ap.Storage(tmp_path / "search", ledger=ledger, resume=True))


def test_without_a_ledger_there_is_no_private_search(search, tmp_path):
    for storage in (ap.Storage(), ap.Storage(tmp_path / "search")):
        with pytest.raises(InvalidArgument, match=r"storage\.ledger=None.*charged, as a whole"):
            search(storage=storage)
    assert not (tmp_path / "search").exists()


def test_the_ledger_of_a_single_run_has_no_room_for_a_search(search, tmp_path):
    Ledger.create(tmp_path / "run" / "own.sqlite").close()
    with pytest.raises(InvalidArgument, match="no limit"):
        search(storage=ap.Storage(ledger=tmp_path / "run" / "own.sqlite"))


def test_a_search_that_does_not_fit_is_refused_before_its_first_trial(search, five, ledger, tmp_path, records):
    search()
    search(storage=ap.Storage(ledger=ledger))
    five["trials"] = 0
    with pytest.raises(BudgetExhausted, match="Nothing was charged"):
        search(storage=ap.Storage(tmp_path / "third", ledger=ledger))
    assert five["trials"] == 0
    assert not (tmp_path / "third").exists()
    assert len(admitted(ledger)) == 2


def test_a_search_that_lost_the_race_for_the_last_room_leaves_nothing(search, five, ledger, tmp_path, monkeypatch):
    def taken(books, *_):
        raise BudgetExhausted("somebody was faster")

    monkeypatch.setattr(Ledger, "admit", taken)
    with pytest.raises(BudgetExhausted):
        search()
    assert five["draws"] == five["trials"] == 0
    assert not (tmp_path / "search").exists()


def test_the_ledger_may_admit_by_the_curve(search, five, tmp_path):
    path = tmp_path / "gaussian.sqlite"
    rule = GaussianRuns(ap.Budget(epsilon=6, delta=1e-4, unit=ap.Record()))
    Ledger.create(path, name="patients", rule=rule).close()
    tuned = search(storage=ap.Storage(ledger=path))
    (run,) = admitted(path)
    assert run.cost == rule.cost(tuned.price.selection, 1e-5, rule.capacity())
    assert 3 < rule.epsilon(run.cost) < 6
    with pytest.raises(BudgetExhausted):
        search(storage=ap.Storage(ledger=path))


def test_an_exact_score_on_private_records_has_no_door(search, records, five):
    inputs, targets = records
    held_out = (inputs[:10], targets[:10])
    for evaluate in (records, held_out, None, "accuracy", lambda model: 1.0, cross_entropy):
        with pytest.raises(InvalidArgument, match="un-noised read"):
            search(evaluate=evaluate)
    for evaluate in (ap.Public(records), ap.Public((inputs, targets.clone())), ap.Public(held_out)):
        with pytest.raises(InvalidArgument, match="declared public here"):
            search(evaluate=evaluate)
    with pytest.raises(InvalidArgument, match="un-noised read"):
        Task(make_model, cross_entropy, records, records, ap.Execution())
    assert five["trials"] == 0


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"trials": 5, "expected_trials": None}, "must be random"),
        ({"trials": 5}, "must be random"),
        ({"expected_trials": None}, "must be random"),
        ({"expected_trials": 1}, "expected_trials=1"),
        ({"seed": 3}, "randomness is secret"),
        ({"processes": 2}, "one after the other"),
        ({"model": nn.Linear(4, 2)}, "fresh weights"),
        ({"space": {}}, "lr=None"),
        ({"space": {"lr": [0.1], "model.depth": [3]}}, "make_model.*depth"),
        ({"model": lambda: "none"}, "did not return a model"),
        ({"storage": "runs"}, "not an apportion.Storage"),
        ({"execution": 3}, "not an apportion.Execution"),
    ],
)
def test_bad_input_is_refused_before_anything_is_charged(search, ledger, changed, words):
    with pytest.raises(InvalidArgument, match=words):
        search(**changed)
    assert admitted(ledger) == []


def test_a_function_that_returns_one_model_is_refused(search, ledger):
    model = make_model()
    with pytest.raises(InvalidArgument, match="same weights every time"):
        search(model=lambda: model)
    assert admitted(ledger) == []


@pytest.mark.parametrize("storage", [{"recovery": "exact"}, {"every": 2}])
def test_trials_keep_no_checkpoints(search, ledger, tmp_path, storage):
    with pytest.raises(InvalidArgument, match="keeps no checkpoint"):
        search(storage=ap.Storage(tmp_path / "search", ledger=ledger, **storage))


def test_an_earlier_search_is_never_overwritten(search, five, ledger, tmp_path):
    search()
    with pytest.raises(InvalidArgument, match="an earlier search already"):
        search()
    with pytest.raises(InvalidArgument, match="no search to go on with"):
        search(storage=ap.Storage(tmp_path / "nowhere", ledger=ledger, resume=True))
    assert not (tmp_path / "nowhere").exists()


def test_settings_are_drawn_uniformly_whatever_was_seen(plan):
    search = plan_search(plan, space=SPACE, expected_trials=10)
    drawn = [private_search._draw(search) for _ in range(400)]
    counts = Counter(number for order in drawn for number in order)
    total = sum(counts.values())
    assert set(counts) == set(range(4))
    assert all(abs(count / total - 1 / 4) < 5 * math.sqrt(3 / 16 / total) for count in counts.values())
    numbers = Counter(map(len, drawn))
    expected = dict(enumerate(islice(search.trials.probabilities(), 3), start=1))
    for number, probability in expected.items():
        assert abs(numbers[number] / 400 - probability) < 5 * math.sqrt(probability / 400)


def test_a_budget_that_no_search_meets_is_refused(budget):
    tight = ap.Budget(epsilon=0.001, delta=1e-5, unit=ap.Record())
    plan = ap.plan("abadi", budget=tight, population=1000, batch_size=100, steps=3)
    with pytest.raises(InvalidArgument, match=r"epsilon|expected_trials"):
        plan_search(plan, space=SPACE, expected_trials=10)


def test_a_given_multiplier_keeps_as_many_steps_as_the_search_affords(budget):
    recipe = ap.Recipe(clip=ap.clip.Fixed(1.0), noise=ap.noise.Constant(multiplier=4.0))
    plan = ap.plan(recipe, budget=budget, population=100, batch_size=50, steps=200)
    search = plan_search(plan, space=SPACE, expected_trials=5)
    assert 0 < search.plans[0].steps < plan.steps
    assert search.plans[0].multipliers[0] == 4.0
    assert search.epsilon <= budget.epsilon
