"""Every record becomes what the schema says, by itself: whatever another record holds changes nothing about it."""

import math

import numpy as np
import pandas
import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_tables import SCHEMA, patients

import apportion as ap
from apportion.tables import Encoding, Schema
from apportion.tables.encoding import BROKEN_CELLS, BROKEN_ROW

COLUMNS = {
    "age": {"range": [0, 100]},
    "dose": {"range": [0, 10], "missing": True},
    "sex": {"categories": ["M", "F"]},
    "code": {"categories": [1, "NA"], "missing": True},
}
CLASSES = Encoding(Schema(COLUMNS | {"ill": {"categories": ["no", "yes"]}}, unit="patient", id="visit"), "ill")
NUMBERS = Encoding(Schema(COLUMNS | {"cost": {"range": [100, 300]}}), "cost")

CASES = {
    "age": [
        ("50", [0.5], None),
        ("0", [0.0], None),
        ("100", [1.0], None),
        (" 1e1 ", [0.1], None),
        ("-1", [0.0], "out of range"),
        ("1e999", [1.0], "out of range"),
        ("-inf", [0.0], "out of range"),
        ("nan", [0.5], "missing"),
        ("", [0.5], "missing"),
        ("N/A", [0.5], "missing"),
        ("old", [0.5], "not a number"),
    ],
    "dose": [
        ("5", [0.5, 0.0], None),
        ("", [0.5, 1.0], None),
        ("x", [0.5, 1.0], "not a number"),
        ("99", [1, 0], "out of range"),
    ],
    "sex": [("M", [1, 0], None), ("F ", [0, 1], None), ("m", [0, 0], "unknown category"), ("", [0, 0], "missing")],
    "code": [
        ("1", [1, 0, 0], None),
        ("1.0", [1, 0, 0], None),
        ("NA", [0, 1, 0], None),
        ("null", [0, 0, 1], None),
        ("2", [0, 0, 0], "unknown category"),
    ],
}
GOOD = {"age": "50", "dose": "5", "sex": "M", "code": "1", "ill": "no", "patient": "p", "visit": "v", "cost": "200"}


def csv_of(encoding, rows, tmp_path):
    named = [name for name in (encoding.schema.unit, encoding.schema.id) if name]
    header = [*encoding.schema.columns, *named]
    lines = [",".join(header), *(",".join((GOOD | row)[name] for name in header) for row in rows)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("column", "text", "inputs", "problem"), [(column, *case) for column, cases in CASES.items() for case in cases]
)
def test_a_cell_becomes_what_the_schema_says(column, text, inputs, problem, tmp_path):
    found = CLASSES.read(csv_of(CLASSES, [{column: text}], tmp_path))
    usual = CLASSES.read(csv_of(CLASSES, [{}], tmp_path))
    start = sum(
        one.width for name, one in CLASSES.inputs.items() if list(COLUMNS).index(name) < list(COLUMNS).index(column)
    )
    expected = usual.inputs.copy()
    expected[0, start : start + len(inputs)] = inputs
    assert found.inputs == pytest.approx(expected)
    assert found.inputs.dtype == np.float32
    assert found.problems == ({f"{column}: {problem}": 1} if problem else {})
    assert usual.problems == {}


def test_a_target_outside_is_not_usable(tmp_path):
    texts = ["no", "yes", "", "perhaps", "nan"]
    found = CLASSES.read(csv_of(CLASSES, [{"ill": text} for text in texts], tmp_path))
    assert found.targets.tolist() == [0, 1, -1, -1, -1]
    assert found.targets.dtype == np.int64
    assert found.usable.tolist() == [True, True, False, False, False]
    assert found.problems == {"ill: missing": 2, "ill: unknown category": 1}
    found = NUMBERS.read(csv_of(NUMBERS, [{"cost": text} for text in ("100", "250", "301", "", "x", "nan")], tmp_path))
    assert found.targets.shape == (6, 1)
    assert found.targets.dtype == np.float32
    assert found.targets[:2, 0].tolist() == [0.0, 0.75]
    assert np.isnan(found.targets[2:]).all()
    assert found.usable.tolist() == [True, True, False, False, False, False]
    assert found.problems == {"cost: missing": 2, "cost: not a number": 1, "cost: out of range": 1}
    assert NUMBERS.to_number(np.array([0.0, 0.5, 1.0])).tolist() == [100, 200, 300]


def test_records_have_names_and_owners(tmp_path):
    rows = [{"patient": "a", "visit": "1"}, {"patient": "", "visit": ""}, {"patient": "NaN", "visit": "", "age": "51"}]
    found = CLASSES.read(csv_of(CLASSES, rows, tmp_path))
    assert found.owners == ("a", None, None)
    assert found.names[0] == "id 1"
    assert len({*found.names}) == 3
    part = found.part(np.array([False, True, True]))
    assert (part.names, part.owners, len(part.inputs)) == (found.names[1:], found.owners[1:], 2)
    none = found.part(np.zeros(3, dtype=bool)).or_unusable()
    assert (none.targets.tolist(), none.inputs.sum(), none.usable.tolist()) == ([-1], 0, [False])
    assert part.or_unusable() is part


FRAMES = {"pandas": pandas.DataFrame, "polars": lambda columns: polars.DataFrame(columns, strict=False)}


@pytest.mark.parametrize("library", FRAMES)
def test_a_frame_becomes_the_same(library, tmp_path):
    schema = Schema(COLUMNS | {"ill": {"categories": [0, 1]}})
    columns = {
        "age": [20.0, math.nan, 300.0],
        "dose": [1, 2, None],
        "sex": ["M", "F", None],
        "code": ["1", "NA", ""],
        "ill": [0, 1, None],
    }
    inputs, targets = ap.tables.records(FRAMES[library](columns), schema, target="ill")
    assert targets.tolist() == [0, 1, -1]
    expected = [[0.2, 0.1, 0, 1, 0, 1, 0, 0], [0.5, 0.2, 0, 0, 1, 0, 1, 0], [1, 0.5, 1, 0, 0, 0, 0, 1]]
    assert inputs == pytest.approx(np.array(expected, dtype=np.float32))


@pytest.mark.parametrize("library", FRAMES)
def test_one_value_does_not_change_the_type_of_a_column(library):
    """A library makes floats of whole numbers when one is missing, and texts of all when one is a text; ids stay what they were."""
    schema = Schema({"age": {"range": [0, 100]}, "ill": {"categories": [0, 1]}}, id="visit", unit="patient")
    encoding, found = Encoding(schema, "ill"), []
    for garbage in (3, None, "x"):
        mixed = [1, 2, garbage] if garbage != "x" else ["1", "2", "x"]
        frame = FRAMES[library]({"age": mixed, "ill": mixed, "visit": mixed, "patient": mixed})
        if library == "pandas":  # ids in a column of floats are refused; as objects they may be floats one by one
            ids = pandas.Series([1.0 if garbage is None else mixed[0], *mixed[1:]], dtype=object)
            frame = frame.assign(visit=ids, patient=ids)
        read = encoding.read(frame)
        found.append((read.inputs[:2].tolist(), read.targets[:2].tolist(), read.names[:2], read.owners[:2]))
    assert found[0] == found[1] == found[2]


CELL = st.one_of(
    st.text(max_size=8), st.sampled_from(['"', "1", "nan", "M", '"a', "é", "1,2", "\x00", "\r", "1e400", "٣"])
)
LINE = st.one_of(
    st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")),
    st.lists(CELL, min_size=0, max_size=6).map(
        lambda cells: ",".join(cells).replace("\n", "").encode("utf-8", "replace")
    ),
    st.sampled_from(
        [b"50.0,M,1,1", b'"50,M,1,1', b"50,M,1", b"50,M,1,1,1", b",,,", b"\xff,\xfe,\x00,1", b"a" * 200_000]
    ),
)
ENCODING = Encoding(Schema.from_dict(__import__("tomllib").loads(SCHEMA)), "ill")
LINES = patients(6).encode().splitlines()


def encoded(lines, tmp_path):
    path = tmp_path / "n.csv"
    path.write_bytes(b"\n".join(lines))
    found = ENCODING.read(path)
    return list(zip(found.inputs.tolist(), found.targets.tolist(), found.names, strict=True))


@settings(max_examples=70, deadline=None)
@given(place=st.integers(1, 6), line=LINE)
def test_no_record_changes_how_another_is_read(place, line, tmp_path_factory):
    """Removed, or replaced by anything: the others become what they were, and nothing is raised."""
    tmp_path = tmp_path_factory.getbasetemp()
    usual = encoded(LINES, tmp_path)
    others = usual[: place - 1] + usual[place:]
    assert encoded(LINES[:place] + LINES[place + 1 :], tmp_path) == others
    changed = encoded([*LINES[:place], line, *LINES[place + 1 :]], tmp_path)
    assert len(changed) in (5, 6)
    assert changed[: place - 1] == usual[: place - 1]
    assert changed[len(changed) - (6 - place) :] == usual[place:]


VALUE = st.one_of(
    st.none(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.just(object()),
    st.just(pandas.NA),
    st.lists(st.none()),
)


class Rude:
    def __init__(self, error):
        self.error = error

    def __str__(self):
        raise self.error

    __float__ = __str__


RUDE = st.sampled_from(
    [Rude(RuntimeError("a record must not be heard")), Rude(SystemExit(7)), Rude(KeyboardInterrupt())]
)


@settings(max_examples=40, deadline=None)
@given(place=st.integers(0, 2), value=st.one_of(VALUE, RUDE))
def test_no_value_of_a_frame_changes_how_another_is_read(place, value):
    columns = {"age": [20, 30, 40], "sex": ["M", "F", "M"], "dose": [1.5, 2, None], "ill": [0, 1, 0]}
    usual = ENCODING.read(pandas.DataFrame(columns))
    changed = {name: list(values) for name, values in columns.items()}
    for values in changed.values():
        values[place] = value
    found = ENCODING.read(
        pandas.DataFrame({name: pandas.Series(values, dtype=object) for name, values in changed.items()})
    )
    others = [one for one in range(3) if one != place]
    assert found.inputs[others].tolist() == usual.inputs[others].tolist()
    assert found.targets[others].tolist() == usual.targets[others].tolist()
    assert [found.names[one] for one in others] == [usual.names[one] for one in others]
    assert ((found.inputs >= 0) & (found.inputs <= 1)).all()


def test_a_broken_row_is_one_problem_and_cannot_be_used(tmp_path):
    lines = patients(3).splitlines()
    lines[2] = "1,M"
    (tmp_path / "t.csv").write_text("\n".join(lines))
    found = ENCODING.read(tmp_path / "t.csv")
    assert found.problems == {BROKEN_ROW: 1}
    assert found.broken.tolist() == [False, True, False]
    assert found.targets[1] == -1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("50,M,1,2", "record 2 the value of 'ill' is unknown category"),
        ("50,M,1,", "record 2 the value of 'ill' is missing"),
        ("nan,M,1,1", "record 2 the value of 'age' is missing"),
        ("50,X,1,1", "record 2 the value of 'sex' is unknown category"),
        ("50,M,x,1", "record 2 the value of 'dose' is not a number"),
        ("120,X,1,1", "record 2 the value of 'sex' is unknown category"),
        ("50,M,1", "record 2 a row with another number of fields"),
    ],
)
def test_public_records_must_be_right(line, words, tmp_path):
    good, *rest = patients(3).splitlines()
    (tmp_path / "t.csv").write_text("\n".join([good, rest[0], line, rest[1]]))
    with pytest.raises(ap.InvalidArgument, match=words):
        ENCODING.read_public(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text("\n".join([good, rest[0], "50,M,,1"]))
    assert len(ENCODING.read_public(tmp_path / "t.csv").inputs) == 2, "a missing dose is declared"


def test_public_numbers_out_of_range_are_moved_and_counted(tmp_path):
    (tmp_path / "t.csv").write_text("\n".join([*patients(2).splitlines(), "120,M,1,1", "-5,M,11,1"]))
    with pytest.warns(UserWarning, match=r"moved to its ends: 2 of 'age', 1 of 'dose'"):
        found = ENCODING.read_public(tmp_path / "t.csv")
    assert found.inputs[2:, 0].tolist() == [1, 0]
    (tmp_path / "t.csv").write_text("age,cost,dose,sex,code\n50,301,1,M,1\n")
    with pytest.raises(ap.InvalidArgument, match="'cost' is out of range"):
        NUMBERS.read_public(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("line", "usable"),
    [
        ('"3,5",M,"1,5",1', False),  # decimal commas that nobody declared
        ('"3,5",M,1,1', True),
        ('"3,5",M,,1', True),
        ("x,?,y,1", False),
        ("50,X,5,1", True),
        ("1000,X,-5,1", True),
    ],
)
def test_a_record_whose_numbers_are_none_is_not_usable(line, usable, tmp_path):
    """Otherwise a whole file of them would be trained on as if everybody were average, without a word."""
    good, *rest = patients(3).splitlines()
    (tmp_path / "t.csv").write_text("\n".join([good, *rest, line]))
    found = ENCODING.read(tmp_path / "t.csv")
    assert found.usable.tolist() == [True, True, True, usable]
    assert found.broken.tolist() == [False, False, False, not usable]
    assert (BROKEN_CELLS in found.problems) != usable


def test_unknown_categories_alone_are_not_usable_only_if_there_is_nothing_else(tmp_path):
    encoding = Encoding(Schema({name: {"categories": ["a", "b"]} for name in ("one", "two", "ill")}), "ill")
    (tmp_path / "t.csv").write_text("one,two,ill\na,x,a\nx,x,a\n,x,b\n")
    assert encoding.read(tmp_path / "t.csv").usable.tolist() == [True, False, True]


@pytest.mark.parametrize("categories", [[0, 1], ["False", "true"], ["FALSE", "TRUE"]])
def test_truth_values_are_categories_that_are_called_so(categories):
    encoding = Encoding(Schema({"age": {"range": [0, 100]}, "ill": {"categories": categories}}), "ill")
    told = [True, False, np.True_, np.False_, "true", "False", "TRUE", None]
    frame = pandas.DataFrame({"age": [50] * 8, "ill": pandas.Series(told, dtype=object)})
    assert encoding.read(frame).targets.tolist() == [1, 0, 1, 0, 1, 0, 1, -1]
    others = Encoding(Schema({"age": {"range": [0, 100]}, "ill": {"categories": [0, 1, 2]}}), "ill")
    assert others.read(frame).targets.tolist() == [-1] * 8, "of three classes none is true"
