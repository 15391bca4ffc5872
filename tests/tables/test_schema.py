"""A schema is declared, complete and clear, or refused with its place."""

import pytest

import apportion as ap
from apportion.tables import Column, Encoding, Schema

FULL = {
    "unit": "patient",
    "id": "visit",
    "ignore": ["remarks", 'with "quotes"'],
    "loss": {"weights": {"ill": 4.0}},
    "columns": {
        "age": {"range": [18.0, 90.0]},
        "sex of birth": {"categories": ["M", "F", "ö\x7f"], "missing": True},
        "outcome": {"categories": ["ill", "well"]},
    },
}


def test_a_schema_survives_every_form(tmp_path):
    schema = Schema.from_dict(FULL)
    assert schema.to_dict() == FULL
    (tmp_path / "s.toml").write_text(schema.to_toml(), encoding="utf-8")
    assert Schema.read(tmp_path / "s.toml") == schema
    assert schema == Schema(
        {"age": Column(range=(18, 90)), **{name: FULL["columns"][name] for name in ("sex of birth", "outcome")}},
        unit="patient",
        id="visit",
        ignore=FULL["ignore"],
        weights={"ill": 4},
    )
    assert Encoding(schema, "outcome").class_weights == (4.0, 1.0)
    with pytest.raises(TypeError):
        schema.columns["age"] = Column(range=(0, 1))


def test_categories_are_texts_as_they_are_written():
    assert Column(categories=[0, 1.0, 2.5, " a "]).categories == ("0", "1", "2.5", "a")


AGE = {"age": {"range": [0, 1]}}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([], "not a table of names"),
        ({}, "a table has columns"),
        ({"columns": {}}, "a table has columns"),
        ({"columns": []}, "not a table of names"),
        ({"columns": {"age": {}}}, r"columns\.age=None: a column has either"),
        ({"columns": {"age": {"range": [0, 1], "categories": ["a"]}}}, "either a range or categories"),
        ({"columns": {"age": 3}}, r"columns\.age=3"),
        ({"columns": {"age": {"range": 3}}}, r"columns\.age\.range=3: it must be two numbers"),
        ({"columns": {"age": {"range": "ab"}}}, "two numbers"),
        ({"columns": {"age": {"range": [1, 2, 3]}}}, "two numbers"),
        ({"columns": {"age": {"range": [True, 2]}}}, "two numbers"),
        ({"columns": {"age": {"range": ["a", 2]}}}, "two numbers"),
        ({"columns": {"age": {"range": [2, 2]}}}, "smaller one"),
        ({"columns": {"age": {"range": [float("nan"), 2]}}}, "not a number"),
        ({"columns": {"age": {"range": [0, float("inf")]}}}, "finite"),
        ({"columns": {"age": {"range": [0, 1e301]}}}, "endless"),
        ({"columns": {"age": {"categories": []}}}, "list of texts"),
        ({"columns": {"age": {"categories": "ab"}}}, "list of texts"),
        ({"columns": {"age": {"categories": [True]}}}, 'Use "True"'),
        ({"columns": {"age": {"categories": [["a"]]}}}, "a text or a number"),
        ({"columns": {"age": {"categories": ["a", " "]}}}, "no value is not a category"),
        ({"columns": {"age": {"categories": ["a", "a "]}}}, "one is there twice"),
        ({"columns": {"age": {"categories": ["1", "1.0"]}}}, "one is there twice"),
        ({"columns": {"age": {"range": [0, 1], "missing": "yes"}}}, r"columns\.age\.missing='yes'"),
        ({"columns": {"age": {"rnage": [0, 1]}}}, "Did you mean 'range'"),
        ({"columns": {"age": {"range": [0, 1], "unit": True}}}, "Write unit above the columns"),
        ({"columns": {" age": {"range": [0, 1]}}}, "begin or end with a space"),
        ({"columns": {"": {"range": [0, 1]}}}, "begin or end with a space"),
        ({"columns": AGE, "unit": "age"}, "also an input"),
        ({"columns": AGE, "unit": 3}, "name of a column"),
        ({"columns": AGE, "id": ""}, "name of a column"),
        ({"columns": AGE, "ignore": "age"}, "list of names"),
        ({"columns": AGE, "ignore": [3]}, "list of names"),
        ({"columns": AGE, "ignore": ["age"]}, "also an input"),
        ({"columns": AGE, "units": "x"}, "Did you mean 'unit'"),
        ({"columns": AGE, "loss": 3}, "not a table of names"),
        ({"columns": AGE, "loss": {"weight": {}}}, "Did you mean 'weights'"),
        ({"columns": AGE, "loss": {"weights": {"a": 0}}}, r"weights\.a=0: it must be positive"),
        ({"columns": AGE, "loss": {"weights": {"a": "b"}}}, "it must be positive"),
        ({"columns": AGE, "loss": {"weights": [1, 2]}}, "not a table of names"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(values, words):
    with pytest.raises(ap.InvalidArgument, match=words) as refused:
        Schema.from_dict(values)
    assert str(refused.value).startswith("schema")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"columns = ", "not valid TOML"),
        (b"\xff\xfe", "not valid TOML"),
        (b"a = " + b"9" * 5000, "not valid TOML|digits"),
    ],
)
def test_a_file_that_is_none_is_refused(content, words, tmp_path):
    (tmp_path / "s.toml").write_bytes(content)
    with pytest.raises(ap.InvalidArgument, match=words):
        Schema.read(tmp_path / "s.toml")


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(ap.InvalidArgument, match="No such file"):
        Schema.read(tmp_path / "none.toml")
    with pytest.raises(ap.InvalidArgument, match="not a file"):
        Schema.read(tmp_path)


@pytest.mark.parametrize(
    ("target", "more", "words"),
    [
        ("nothing", {}, "no such column"),
        ("one", {"one": {"categories": ["a"]}}, "single category"),
        ("age", {}, "no other column"),
        ("age", {"sex": {"categories": ["a", "b"]}, "weights": {"a": 2.0}}, "the target is a number"),
        ("sex", {"sex": {"categories": ["a", "b"]}, "weights": {"c": 2.0}}, "no such category"),
    ],
)
def test_a_target_that_makes_no_sense_is_refused(target, more, words):
    more = dict(more)
    weights = more.pop("weights", {})
    with pytest.raises(ap.InvalidArgument, match=words):
        Encoding(Schema(AGE | more, weights=weights), target)
    with pytest.raises(ap.InvalidArgument, match="not a Schema"):
        Encoding(3, "age")
