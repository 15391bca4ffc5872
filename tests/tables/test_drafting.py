"""A schema is drafted from public data for free, or privately for one charge that covers all of its questions."""

import math

import pytest
from made_tables import patients

import apportion as ap
from apportion.accounting.ledger import Ledger
from apportion.accounting.run_filter import SumOfRuns
from apportion.curator.randomness import Randomness
from apportion.event import Choice, Event
from apportion.statistics import thresholded
from apportion.tables import drafting
from apportion.tables.drafting import Questions, draft_from_public, draft_privately
from apportion.tables.table_files import TableForm

HEADER = "patient,age,sex,dose,ill"
ASK = Questions({"age": (0, 120), "dose": (-50, 50)}, ["sex"], {"ill": ["0", "1"]})


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "patients.csv"
    path.write_text(patients(2000, header=HEADER) + "p,999,Rare,,1\n1,2\n")
    return path


def test_a_public_table_says_what_occurs(table, tmp_path):
    sample = tmp_path / "sample.csv"
    rows = [
        f"{number},{18 + number / 10},{'MF'[number % 2]},{'' if number == 5 else min(number, 120)},{number % 2}"
        for number in range(150)
    ]
    sample.write_text("\n".join(["patient,age,sex,dose,ill", *rows, "broken"]))
    schema, (remark,) = draft_from_public(table, sample)
    assert schema.ignore == ("patient",)
    assert remark.startswith("patient is ignored: its values are all different")
    assert remark.endswith("range = [0.0, 149.0]")
    assert schema.to_dict()["columns"] == {
        "age": {"range": [18.0, 32.9]},
        "sex": {"categories": ["F", "M"]},
        "dose": {"range": [0.0, 120.0], "missing": True},
        "ill": {"categories": ["0", "1"]},
    }
    for count, remarks in ((150, 0), (50, 1)):  # too many to be categories; few, and all different
        names = [f"name {number},{18 + number / 10},1" for number in range(count)]
        sample.write_text("\n".join(["patient,age,ill", *names]))
        schema, said = draft_from_public(table, sample)
        assert list(schema.columns) == ["age", "ill"]
        assert schema.ignore == ("patient", "sex", "dose")
        assert len(said) == remarks


def test_a_draft_of_a_table_with_decimal_commas_says_so(tmp_path):
    (tmp_path / "t.csv").write_bytes("größe;ort\n1,5;Köln\n2,5;Ulm\n".encode("latin-1"))
    schema, _ = draft_from_public(tmp_path / "t.csv", tmp_path / "t.csv", TableForm(",", "latin-1"))
    assert schema.columns["größe"].range == (1.5, 2.5)
    assert schema.columns["ort"].categories == ("Köln", "Ulm")
    assert (schema.decimal, schema.encoding) == (",", "latin-1")
    ask = Questions({"größe": (0, 9)}, ["ort"])
    drafted = draft_privately(tmp_path / "t.csv", ask, epsilon=1.0, delta=1e-6, seed=0, form=schema.form)
    assert drafted.decimal == ","


def test_two_ways_to_write_a_number_are_one_category(tmp_path):
    (tmp_path / "t.csv").write_text("code\n" + "1\n1.0\n2\n" * 400)
    schema = draft_privately(tmp_path / "t.csv", Questions(texts=["code"]), epsilon=5.0, delta=1e-6, seed=0)
    assert schema.columns["code"].categories == ("1", "2")


def test_a_draft_that_finds_nothing_says_what_it_cost(tmp_path):
    (tmp_path / "t.csv").write_text("code\n1\n")
    with pytest.raises(ap.UnusableRecords, match="ε = 1 was charged"):
        draft_privately(tmp_path / "t.csv", Questions(texts=["code"]), epsilon=1.0, delta=1e-6, seed=0)


@pytest.mark.parametrize(
    ("content", "words"),
    [("name,age\nx,1\n", "lacks: 'name'"), ("age\n\n,\n", "nothing could be found"), ("", "empty")],
)
def test_a_public_table_of_another_form_is_refused(content, words, table, tmp_path):
    (tmp_path / "sample.csv").write_text(content)
    with pytest.raises(ap.InvalidArgument, match=words):
        draft_from_public(table, tmp_path / "sample.csv")


def test_a_private_draft_finds_ranges_and_categories(table):
    schema = draft_privately(table, ASK, epsilon=10.0, delta=1e-6, seed=0)
    low, high = schema.columns["age"].range
    assert 10 <= low <= 25
    assert 85 <= high <= 100
    low, high = schema.columns["dose"].range
    assert -2 <= low <= 1
    assert 9 <= high <= 12
    assert schema.columns["sex"].categories == ("F", "M"), "and not the one whom a single record has"
    assert schema.columns["ill"].categories == ("0", "1")
    assert all(column.missing for column in schema.columns.values())
    assert schema.ignore == ("patient",)


def observed(monkeypatch, table, **terms):
    """ε and δ of each question, as they are executed."""
    asked, law, release = [], drafting.quantile_law, drafting.release_frequent

    def watch_law(positions, level, epsilon):
        asked.append((epsilon, 0.0))
        return law(positions, level, epsilon)

    def watch_release(counts, epsilon, delta, noise):
        asked.append((epsilon, delta))
        return release(counts, epsilon, delta, noise)

    monkeypatch.setattr(drafting, "quantile_law", watch_law)
    monkeypatch.setattr(drafting, "release_frequent", watch_release)
    draft_privately(table, ASK, **terms)
    return asked


def test_what_is_charged_is_the_sum_of_what_is_asked(table, tmp_path, monkeypatch):
    path, limit = tmp_path / "patients.sqlite", ap.Budget(epsilon=1.0, delta=1e-5, unit=ap.Record())
    Ledger.create(path, name="patients", rule=SumOfRuns(limit)).close()
    drawn, next_draw = [], Randomness.next_draw

    def watch(self):
        books = Ledger.open(path)
        drawn.extend((run.cost.main, run.cost.failure) for run in books.runs())
        assert list(books.events()) == [Event(1.0, math.inf, (Choice(0.5),))]
        books.close()
        return next_draw(self)

    monkeypatch.setattr(Randomness, "next_draw", watch)
    asked = observed(monkeypatch, table, epsilon=0.5, delta=1e-6, storage=path)
    assert len(asked) == 5
    ((epsilon, delta),) = drawn
    assert epsilon == 0.5 == pytest.approx(math.fsum(one for one, _ in asked), rel=1e-12)
    assert delta == 1e-6 == pytest.approx(math.fsum(one for _, one in asked), rel=1e-12)
    with pytest.raises(ap.BudgetExhausted):
        draft_privately(table, ASK, epsilon=0.6, delta=1e-6, storage=path)


def test_without_texts_no_delta_is_spent(table, tmp_path):
    path, limit = tmp_path / "patients.sqlite", ap.Budget(epsilon=1.0, delta=1e-5, unit=ap.Record())
    Ledger.create(path, name="patients", rule=SumOfRuns(limit)).close()
    draft_privately(table, Questions({"age": (0, 120)}), epsilon=0.5, storage=path)
    books = Ledger.open(path)
    assert (books.spent().main, books.spent().failure) == (0.5, 0.0)
    books.close()


@pytest.mark.parametrize("rows", ["", "x,y,z,,\n" * 3, "1\n2,3\n"])
def test_records_that_hold_nothing_raise_nothing(rows, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("patient,age,sex,dose,ill\n" + rows)
    schema = draft_privately(path, ASK, epsilon=1.0, delta=1e-6, seed=0)
    assert "age" in schema.columns


def test_ends_in_the_wrong_order_are_the_declared_ones(monkeypatch, table):
    found = iter([900_000, 100_000] * 2)
    monkeypatch.setattr(
        drafting, "quantile_law", lambda *_: type("Law", (), {"draw": lambda self, noise: next(found)})()
    )
    schema = draft_privately(table, Questions({"age": (0, 120)}), epsilon=1.0, seed=0)
    assert schema.columns["age"].range == (0, 120)


@pytest.mark.parametrize(
    ("questions", "terms", "words"),
    [
        (Questions(), {}, "nothing to ask"),
        (Questions(texts=["sex"]), {"delta": None}, "spends δ"),
        (Questions({"weight": (0, 1)}), {}, "lacks 'weight'"),
        (Questions({"age": (1, 0)}), {}, "bounds"),
        (Questions({"age": (0, 1)}, ["age"]), {}, "named twice"),
        (Questions(texts=["sex"]), {"epsilon": 1e-300}, "larger than any count"),
        (Questions(texts=["sex"]), {"epsilon": -1.0}, "epsilon"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_charge(questions, terms, words, table, monkeypatch):
    monkeypatch.setattr(drafting, "charge", lambda *_, **__: pytest.fail("charged"))
    with pytest.raises(ap.InvalidArgument, match=words):
        draft_privately(table, questions, **({"epsilon": 1.0, "delta": 1e-6} | terms))


def test_single_texts_are_not_shown(table, monkeypatch):
    """A text that one record has is released with probability at most δ: here never, with the noise at its median."""
    monkeypatch.setattr(thresholded, "draw_discrete_laplace", lambda scale, stream: 0)
    schema = draft_privately(table, Questions(texts=["sex", "patient"]), epsilon=1.0, delta=1e-6, seed=0)
    assert schema.columns["sex"].categories == ("F", "M")
    assert "patient" in schema.ignore
