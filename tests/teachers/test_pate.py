"""The whole of it: from private records to a student, within every group's budget."""

import json
import shutil
import stat
from dataclasses import replace
from functools import partial

import pytest
import torch
from sklearn.svm import SVC
from small_teachers import SHARES, Constant, Failing, small_network

import apportion as ap
from apportion.accounting.gaussian import gaussian_epsilon
from apportion.accounting.ledger import Ledger
from apportion.accounting.run_filter import GaussianRuns, SumOfRuns
from apportion.curator.records import as_records
from apportion.errors import BudgetExhausted, DataNotFound, InvalidArgument, TakenOver
from apportion.teachers import pate as room
from apportion.teachers.estimators import logistic, svm
from apportion.teachers.keeping import Books
from apportion.teachers.partition import record_content, spread_groups

QUERIES = torch.randn(30, 2, generator=torch.Generator().manual_seed(8))
TEST = torch.randn(200, 2, generator=torch.Generator().manual_seed(9))


@pytest.fixture
def run(three, people):
    """A small run; arguments override its own."""
    data, groups = people
    labelled = replace(three, labels=groups)

    def call(**changed):
        settings = {
            "data": data,
            "budget": labelled,
            "queries": ap.Public(QUERIES),
            "classes": 2,
            "teacher": partial(SVC, C=10.0),
            "student": logistic,
            "teachers": 12,
            "evaluate": ap.Public((TEST, (TEST[:, 0] > 0).long())),
        }
        return ap.pate(**settings | changed)

    return call


@pytest.fixture
def digits():
    return ap.data.load("digits")


FIVE_EIGHT_TWELVE = {"strict": (5.0, 0.34), "medium": (8.0, 0.43), "loose": (12.0, 0.23)}


def five_eight_twelve(data):
    """Budgets of a benchmark, by a hash of its records."""
    budget = ap.Budget.of_groups(FIVE_EIGHT_TWELVE, delta=1e-5, unit=ap.Record())
    records = as_records(data.train)
    contents = (record_content(records, index) for index in range(len(records)))
    return replace(budget, labels=spread_groups(contents, budget.groups))


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(ap.teachers.Weighting(), marks=pytest.mark.slow),
        pytest.param(ap.teachers.Upsampling(), marks=pytest.mark.slow),
        pytest.param(ap.teachers.Vanishing(), marks=pytest.mark.slow),
    ],
    ids=lambda one: type(one).__name__,
)
def test_digits_are_learned_within_budgets_of_5_8_and_12(digits, variant):
    budget = five_eight_twelve(digits)
    inputs, classes = digits.test.data
    taught = ap.pate(
        digits.train,
        budget,
        queries=ap.Public(inputs[:250]),
        classes=10,
        teacher=logistic,
        student=svm,
        teachers=50,
        variant=variant,
        evaluate=ap.Public((inputs[250:], classes[250:])),
        seed=1,
    )
    assert taught.queries_answered == 250
    assert taught.student_accuracy >= 0.8
    assert max(one.epsilon / one.budget for one in taught.groups) == pytest.approx(1, abs=1e-6)
    for one in taught.groups:
        assert 0 < one.epsilon <= one.budget


@pytest.mark.slow
def test_mnist_is_learned_by_250_teachers():
    try:
        mnist = ap.data.load("mnist")
    except DataNotFound:
        pytest.skip("mnist is not on this machine")
    budget = five_eight_twelve(mnist)
    inputs, classes = mnist.test.data
    taught = ap.pate(
        mnist.train,
        budget,
        queries=ap.Public(inputs[:1000]),
        classes=10,
        teacher=logistic,
        student=svm,
        teachers=250,
        evaluate=ap.Public((inputs[1000:], classes[1000:])),
        processes=2,
    )
    assert taught.student_accuracy > 0.85


def test_a_small_run_says_what_it_did(run, three, variant):
    taught = run(variant=variant, seed=0)
    assert taught.queries_asked == taught.queries_answered == 30
    assert taught.student_accuracy > 0.6
    assert not taught.private
    facts = taught.statement()
    assert facts["groups"] == [vars(one) for one in taught.groups]
    assert [one.budget for one in taught.groups] == [group.epsilon for group in three.groups]
    assert taught.epsilon() == max(one.epsilon for one in taught.groups)
    assert taught.epsilon("strict") == taught.groups[0].epsilon
    assert json.loads(json.dumps(facts))["charges"] == 30
    assert facts["epsilon_spent"] <= facts["epsilon"] == 5.0
    assert "30 of 30 queries answered" in repr(taught)


def test_the_price_is_that_of_the_formula(run):
    taught = run(aggregation=ap.teachers.GNMax(sigma=40.0), variant=ap.teachers.Upsampling())
    sigma = taught.statement()["mechanism"]["sigma"]
    assert sigma == pytest.approx(40 * (0.5 + 0.6 + 1.0))
    for one, copies in zip(taught.groups, (1, 2, 5), strict=True):
        assert one.epsilon == pytest.approx(gaussian_epsilon((2 * 30) ** 0.5 * copies / sigma, 1e-5))


def test_equal_budgets_are_plain_gnmax_bit_for_bit(run, people):
    equal = ap.Budget.of_groups({"a": (4.0, 0.2), "b": (4.0, 0.3), "c": (4.0, 0.5)}, delta=1e-5, unit=ap.Record())
    plain = run(budget=ap.Budget(epsilon=4.0, delta=1e-5, unit=ap.Record()), seed=3)
    for variant in (ap.teachers.Upsampling(), ap.teachers.Weighting(), ap.teachers.Vanishing()):
        taught = run(budget=replace(equal, labels=people[1]), variant=variant, seed=3)
        assert taught.answers == plain.answers
        assert {one.epsilon for one in taught.groups} == {plain.groups[0].epsilon}


def test_it_stops_before_a_budget_is_exceeded(run):
    taught = run(aggregation=ap.teachers.GNMax(sigma=7.0), seed=0)
    assert 0 < taught.queries_asked < 30
    assert all(one.epsilon <= one.budget for one in taught.groups)
    weights = [one["weight"] for one in taught.statement()["ensemble"]["groups"]]
    paid, more = (
        [gaussian_epsilon((2 * queries) ** 0.5 * weight / 7, 1e-5) for weight in weights]
        for queries in (taught.queries_asked, taught.queries_asked + 1)
    )
    assert all(price <= one.budget for price, one in zip(paid, taught.groups, strict=True))
    assert any(price > one.budget for price, one in zip(more, taught.groups, strict=True)), "it stopped too early"


def test_confident_votes_are_checked_and_charged_whether_they_are_answered_or_not(run):
    silent = run(aggregation=ap.teachers.ConfidentGNMax(sigma=40.0, check_sigma=20.0, threshold=12.0), seed=2)
    assert silent.queries_answered < silent.queries_asked == 30
    assert silent.statement()["charges"] == 30 + silent.queries_answered
    weights = [1.0 * 12 * e / (6 * 1 + 4 * 2 + 2 * 5) for e in (1, 2, 5)]
    for one, weight in zip(silent.groups, weights, strict=True):
        squared = 30 * (weight / 20) ** 2 + silent.queries_answered * 2 * (weight / 40) ** 2
        assert one.epsilon == pytest.approx(gaussian_epsilon(squared**0.5, 1e-5))


@pytest.mark.slow
def test_torch_teachers_and_students(run):
    fit = ap.teachers.Fit(epochs=30, lr=0.05)
    taught = run(teacher=small_network, student=small_network, fit=fit, seed=0)
    assert isinstance(taught.student, torch.nn.Linear)
    assert taught.student_accuracy > 0.6


def test_numbers_and_names_of_groups_are_the_same(run, three, people):
    names = [three.groups[number].name for number in people[1]]
    for labels in (names, torch.as_tensor(people[1])):
        assert run(budget=replace(three, labels=labels), seed=1).answers == run(seed=1).answers


def test_too_few_answers_are_no_student_and_no_error(run):
    with pytest.warns(UserWarning, match="no student"):
        taught = run(
            teacher=Constant,
            student=svm,
            aggregation=ap.teachers.GNMax(sigma=0.5),
            queries=ap.Public(QUERIES[:1]),
            budget=ap.Budget(epsilon=50.0, delta=1e-5, unit=ap.Record()),
        )
    assert taught.student is None
    assert taught.student_accuracy is None


UNEQUAL = ap.Budget.of_groups({"a": (1.0, 0.98), "b": (50.0, 0.02)}, delta=1e-5, unit=ap.Record(), labels=["a"] * 60)


def labelled(labels, unit=None):
    return ap.Budget.of_groups(SHARES, delta=1e-5, unit=unit or ap.Record(), labels=labels)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"aggregation": ap.teachers.ConfidentGNMax(threshold=13)}, "threshold=13.0: no class can have more votes"),
        ({"teachers": 2}, "teachers=2: there are 3 groups"),
        ({"teachers": 0}, "teachers=0"),
        (
            {"budget": UNEQUAL, "variant": ap.teachers.Upsampling(most_copies=50), "teachers": 2},
            "copied to 50 different teachers, and there are 4",
        ),
        ({"variant": "weighting"}, "variant='str'"),
        ({"aggregation": "gnmax"}, "aggregation='str'"),
        ({"fit": 3}, "fit='int'"),
        ({"aggregation": ap.teachers.GNMax(sigma=0.1)}, "not even one query fits"),
        ({"budget": labelled([0] * 59)}, "labels='list': it must have one entry for each record"),
        ({"budget": labelled(None)}, "the budget has groups, and who is in which must be declared"),
        ({"budget": labelled(["strict"] * 59 + ["lose"])}, "labels=['lose']: no group of the budget is called so"),
        ({"budget": labelled([0] * 59 + [3])}, "labels=['3']: no group of the budget is called so"),
        ({"budget": labelled([0] * 60, unit=ap.User())}, "unit.ids=None"),
        ({"ids": [1, 2]}, "ids='list': it must have one entry for each record"),
        ({"queries": QUERIES}, "queries='Tensor': a score on private records"),
        ({"queries": ap.Public((QUERIES, QUERIES[:, 0]))}, "its rows have the shapes"),
        ({"queries": ap.Public("words")}, "it holds no inputs"),
        ({"queries": ap.Public(QUERIES[:0])}, "it holds no inputs"),
        ({"evaluate": (TEST, TEST[:, 0].long())}, "evaluate='tuple'"),
        ({"classes": 1}, "classes=1"),
        ({"teacher": lambda: 3}, "teacher='<lambda>': one that was tried on public inputs failed"),
        ({"student": lambda: torch.nn.Linear(5, 2)}, "student='<lambda>'"),
        ({"processes": 0}, "processes=0"),
        ({"data": (TEST, TEST[:, 0])}, "teachers vote for classes"),
        ({"budget": 3.0}, "it is not a Budget"),
        ({"storage": ap.Storage("made", recovery="exact")}, "recovery='exact'"),
        ({"storage": "made"}, "storage='str'"),
    ],
)
def test_bad_input_is_refused_before_anything_is_trained_or_charged(run, changed, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(room, "_train_teachers", lambda *_: pytest.fail("teachers were trained"))
    with pytest.raises(InvalidArgument) as refused:
        run(**{"storage": ap.Storage("made"), **changed})
    assert message in str(refused.value)
    assert not (tmp_path / "made").exists()


def test_budgets_must_be_positive():
    for epsilon in (0.0, -1.0):
        with pytest.raises(InvalidArgument):
            ap.Budget.of_groups({"a": (epsilon, 1.0)}, delta=1e-5, unit=ap.Record())


# -- the folder --


def test_the_folder_holds_what_may_be_published_and_what_may_not(run, tmp_path):
    folder = tmp_path / "run"
    taught = run(storage=ap.Storage(folder))
    labels = [json.loads(line) for line in (folder / "public/answers.jsonl").read_text().splitlines()]
    assert {one["query"]: one["class"] for one in labels} == taught.answers
    assert json.loads((folder / "public/privacy.json").read_text())["private"] is True
    assert "| strict | 1 |" in (folder / "public/privacy.md").read_text()
    assert {path.name for path in (folder / "public").iterdir()} == {
        *("answers.jsonl", "privacy.json", "privacy.md", "results.json", "student.pickle")
    }
    cost = json.loads((folder / "secret/data-dependent.json").read_text())
    assert cost["label"].startswith("NOT PUBLISHABLE")
    for one, paid in zip(cost["groups"], taught.groups, strict=True):
        assert one["data_dependent_epsilon"] <= paid.epsilon
    for name in ("data-dependent.json", "votes.npy", "pate.json", "ledger.sqlite"):
        assert stat.S_IMODE((folder / "secret" / name).stat().st_mode) == 0o600
    assert "data_dependent" not in "".join(path.read_text() for path in (folder / "public").glob("*.json*"))
    with pytest.raises(InvalidArgument, match="an earlier run already"):
        run(storage=ap.Storage(folder))


def test_a_torch_student_is_written_without_code(run, tmp_path):
    run(student=small_network, storage=ap.Storage(tmp_path / "run"))
    from safetensors.torch import load_file

    assert set(load_file(tmp_path / "run/public/student.safetensors")) == {"weight", "bias"}


def limited(path, rule, epsilon=9.0):
    limit = rule(ap.Budget(epsilon=epsilon, delta=1e-4, unit=ap.Record()))
    Ledger.create(path, name="people", rule=limit).close()
    return path


def test_a_data_set_admits_the_whole_promise_and_refuses_what_does_not_fit(run, tmp_path, monkeypatch):
    path = limited(tmp_path / "people.sqlite", SumOfRuns)
    taught = run(storage=ap.Storage(tmp_path / "one", ledger=path))
    ledger = Ledger.open(path)
    (admitted,) = ledger.runs()
    assert (admitted.cost.main, admitted.cost.failure) == (5.0, 1e-5)
    assert len(list(ledger.charges(1))) == 30
    ledger.close()
    assert taught.statement()["data_set"]["name"] == "people"
    own = Ledger.open(tmp_path / "one/secret/ledger.sqlite")
    assert len(list(own.charges())) == 30
    own.close()
    monkeypatch.setattr(room, "_train_teachers", lambda *_: pytest.fail("teachers were trained"))
    with pytest.raises(BudgetExhausted, match="Nothing was charged"):
        run(storage=ap.Storage(tmp_path / "two", ledger=path))
    assert not (tmp_path / "two").exists()
    with pytest.raises(InvalidArgument, match="a filter promises one point of its curve"):
        run(storage=ap.Storage(tmp_path / "two", ledger=limited(tmp_path / "gaussian.sqlite", GaussianRuns)))
    with pytest.raises(InvalidArgument, match="a run with a seed is not private"):
        run(storage=ap.Storage(ledger=path), seed=0)


class Crash(Exception):
    pass


@pytest.fixture
def crashing(monkeypatch):
    """A run that dies after the charge of its eleventh query and before its label is kept."""
    keep = Books.keep_answer

    def kept(books, query, label):
        if query == 10:
            raise Crash
        keep(books, query, label)

    def call(run, storage):
        with monkeypatch.context() as broken:
            broken.setattr(Books, "keep_answer", kept)
            with pytest.raises(Crash):
                run(storage=storage)

    return call


def charges(path):
    ledger = Ledger.open(path)
    found = [token for token, _ in ledger.charges()]
    ledger.close()
    return found


@pytest.mark.parametrize("shared", [False, True])
def test_after_a_crash_it_goes_on_after_the_last_charge(run, crashing, tmp_path, monkeypatch, shared):
    ledger = limited(tmp_path / "people.sqlite", SumOfRuns) if shared else None
    folder = tmp_path / "run"
    crashing(run, ap.Storage(folder, ledger=ledger))
    book = ledger or folder / "secret/ledger.sqlite"
    assert charges(book) == list(range(2, 23, 2))
    monkeypatch.setattr(room, "_train_teachers", lambda *_: pytest.fail("teachers were trained again"))
    taught = run(storage=ap.Storage(folder, ledger=ledger, resume=True))
    assert charges(book) == list(range(2, 61, 2)), "a query was paid for twice or not at all"
    assert sorted(taught.answers) == [query for query in range(30) if query != 10], "a lost label was asked again"
    assert taught.groups == run_spending(run, monkeypatch)
    again = run(storage=ap.Storage(folder, ledger=ledger, resume=True))
    assert again.answers == taught.answers
    assert charges(book) == list(range(2, 61, 2))


def run_spending(run, monkeypatch):
    monkeypatch.undo()
    return run().groups


def test_an_older_copy_of_the_ledger_is_refused(run, crashing, tmp_path):
    folder, copy = tmp_path / "run", tmp_path / "older.sqlite"
    keep = Books.keep_answer
    crashing(run, ap.Storage(folder))
    book = folder / "secret/ledger.sqlite"
    shutil.copy(book, copy)
    run(storage=ap.Storage(folder, resume=True))
    shutil.copy(copy, book)
    with pytest.raises(InvalidArgument, match="an older copy"):
        run(storage=ap.Storage(folder, resume=True))
    assert Books.keep_answer is keep


def test_a_second_process_is_stopped_at_the_first_charge_of_the_other(run, crashing, tmp_path, monkeypatch):
    ledger, folder = limited(tmp_path / "people.sqlite", SumOfRuns), tmp_path / "run"
    crashing(run, ap.Storage(folder, ledger=ledger))
    shutil.copytree(folder, tmp_path / "copy")
    keep, others = Books.keep_answer, []

    def meanwhile(books, query, label):
        if not others:
            others.append(query)
            run(storage=ap.Storage(tmp_path / "copy", ledger=ledger, resume=True))
        keep(books, query, label)

    monkeypatch.setattr(Books, "keep_answer", meanwhile)
    with pytest.raises(TakenOver):
        run(storage=ap.Storage(folder, ledger=ledger, resume=True))
    assert charges(ledger) == list(range(2, 61, 2)), "a query was paid for twice or not at all"


@pytest.mark.parametrize(
    "changed",
    [
        {"aggregation": ap.teachers.GNMax(sigma=90.0)},
        {"variant": ap.teachers.Vanishing()},
        {"classes": 3},
        {"queries": ap.Public(QUERIES + 1)},
    ],
)
def test_a_run_goes_on_with_its_own_settings_only(run, crashing, tmp_path, changed):
    crashing(run, ap.Storage(tmp_path / "run"))
    with pytest.raises(InvalidArgument, match="the run was started with"):
        run(storage=ap.Storage(tmp_path / "run", resume=True), **changed)


def test_what_is_damaged_or_never_began_does_not_go_on(run, crashing, tmp_path):
    with pytest.raises(InvalidArgument, match="it never began"):
        run(storage=ap.Storage(tmp_path / "none", resume=True))
    crashing(run, ap.Storage(tmp_path / "run"))
    (tmp_path / "run/secret/votes.npy").write_bytes(b"damaged")
    with pytest.raises(InvalidArgument, match="it is damaged"):
        run(storage=ap.Storage(tmp_path / "run", resume=True))
    (tmp_path / "run/secret/pate.json").write_text("{")
    with pytest.raises(InvalidArgument, match="it is damaged"):
        run(storage=ap.Storage(tmp_path / "run", resume=True))


def test_a_run_that_was_never_charged_leaves_nothing(run, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "_ask_all", lambda *_: (_ for _ in ()).throw(Crash))
    with pytest.raises(Crash):
        run(storage=ap.Storage(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_record_that_breaks_its_teacher_is_no_error(run, people):
    (inputs, classes), _ = people
    broken = inputs.clone()
    broken[0] = 100.0
    taught = run(data=(broken, classes), teacher=Failing, student=logistic, seed=0)
    assert taught.queries_asked == 30


def test_progress_is_shown_in_a_few_lines(run, capsys):
    run(progress=True)
    shown = capsys.readouterr().err
    assert "teachers 12/12" in shown
    assert "queries 30/30  answered 30  ε strict" in shown
    run(progress=False)
    assert capsys.readouterr().err == ""
