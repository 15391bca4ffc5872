"""The structure of a table, its header and its format, is public: what is wrong there is one sentence. Records never are."""

import tomllib

import pandas
import polars
import pyarrow
import pytest
from made_tables import HEADER, SCHEMA, patients
from pyarrow import parquet

import apportion as ap
from apportion.tables import Encoding, Schema

VALUES = tomllib.loads(SCHEMA)
ENCODING = Encoding(Schema.from_dict(VALUES), "ill")
ROWS = patients(3).splitlines()[1:]


def read(tmp_path, content, name="t.csv", encoding=ENCODING):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return encoding.read(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "first line is empty"),
        (b"\n1,M,2,0\n", "first line is empty"),
        ("age,sex,ill\n1,M,0\n", "its header lacks 'dose'"),
        (HEADER + ",age\n1,M,1,1,1\n", "has 'age' twice"),
        (HEADER + ",name\n1,M,1,1,x\n", r"schema does not have: 'name'\. .*ignore = \['name'\]"),
        ("," + HEADER + "\n0,1,M,1,1\n", "without a name"),
        (HEADER.encode("utf-16") + b"\n", 'not text in UTF-8. .*encoding = "latin-1"'),
        (b"PAR1\x00\x00\x15\x04", "not text in UTF-8"),
        ("äge,sex\n".encode("latin-1"), "not text in UTF-8"),
    ],
)
def test_a_structure_that_is_wrong_is_refused(content, words, tmp_path):
    with pytest.raises(ap.InvalidArgument, match=words):
        read(tmp_path, content)


@pytest.mark.parametrize("content", [HEADER, HEADER + "\n\n \n"])
def test_no_record_at_all_looks_like_one_that_cannot_be_used(content, tmp_path):
    """A private table without records is a legal one: it must not be told apart from one with a single record."""
    none, one = read(tmp_path, content), read(tmp_path, HEADER + "\n1,2\n")
    assert none.inputs.shape == one.inputs.shape
    assert none.targets.tolist() == one.targets.tolist() == [-1]
    for read_public in (ENCODING.read_public, ENCODING.read_inputs):  # about these there is nothing to hide
        (tmp_path / "t.csv").write_text(content)
        with pytest.raises(ap.InvalidArgument, match="no records"):
            read_public(tmp_path / "t.csv")


def test_decimal_commas_and_other_letters_are_declared(tmp_path):
    columns = {"größe": {"range": [0, 10]}, "ort": {"categories": ["Köln", "Ulm"]}, "ill": {"categories": [0, 1.5]}}
    schema = Schema(columns, decimal=",", encoding="latin-1")
    encoding, text = Encoding(schema, "ill"), "größe;ort;ill\n3,5;Köln;1,5\n4;Ulm;0\n1.234,5;Ulm;0\n5.000;Ulm;0\n"
    found = read(tmp_path, text.encode("latin-1"), encoding=encoding)
    assert found.inputs[:, 0].tolist() == pytest.approx([0.35, 0.4, 0.5, 0.5]), "a point is no decimal comma"
    assert found.inputs[:2, 1:].tolist() == [[1, 0], [0, 1]]
    assert found.targets.tolist() == [1, 0, -1, -1]
    frame = pandas.DataFrame({"größe": [3.5, 4.0], "ort": ["Köln", "Ulm"], "ill": [1.5, 0.0]})
    assert encoding.read(frame).inputs.tolist() == found.inputs[:2].tolist(), "numbers of a frame are numbers"
    assert encoding.read(frame).targets.tolist() == [1, 0]
    assert Schema.from_dict(tomllib.loads(schema.to_toml())) == schema
    for wrong in ({"decimal": ";"}, {"encoding": "utf-16"}):
        with pytest.raises(ap.InvalidArgument, match="Choose from"):
            Schema(columns, **wrong)


IDS = Encoding(Schema.from_dict(VALUES | {"id": "visit"}), "ill")


def test_ids_in_a_column_of_floats_are_refused_by_its_type(tmp_path):
    """2**53 and 2**53 + 1 are one float: what pandas makes of all ids when one is missing."""
    rows = {"age": [20, 30], "sex": ["M", "F"], "dose": [1, 2], "ill": [0, 1]}
    large = [2**53, 2**53 + 1]
    frame = pandas.DataFrame(rows | {"visit": pandas.Series(large, dtype="Int64")})
    assert IDS.read(frame).names == (f"id {2**53}", f"id {2**53 + 1}")
    frame.to_parquet(tmp_path / "t.parquet")
    assert len(set(IDS.read(tmp_path / "t.parquet").names)) == 2
    for kind in ("float64", "Float64", "float32"):
        frame = pandas.DataFrame(rows | {"visit": pandas.Series([1, 2], dtype=kind)})
        frame.to_parquet(tmp_path / "t.parquet")
        for source in (frame, tmp_path / "t.parquet", polars.from_pandas(frame)):
            with pytest.raises(ap.InvalidArgument, match=r"'visit' tells records .*dtype=\{'visit': \"string\"\}"):
                IDS.read(source)
    assert (
        ENCODING.read(pandas.DataFrame(rows)).names
        == ENCODING.read(pandas.DataFrame(rows).astype({"age": float})).names
    )


def test_a_record_in_the_place_of_the_header_is_not_told(tmp_path):
    with pytest.raises(ap.InvalidArgument, match="its header lacks") as refused:
        read(tmp_path, "87.5,F,3.25,1\n" + "\n".join(ROWS))
    assert not any(secret in str(refused.value) for secret in ("87.5", "3.25"))


@pytest.mark.parametrize(
    "content",
    [
        "\ufeff" + HEADER + "\n" + "\n".join(ROWS),
        HEADER + "\r\n" + "\r\n".join(ROWS) + "\r\n",
        HEADER.replace(",", ";") + "\n" + "\n".join(ROWS).replace(",", ";"),
        HEADER.replace(",", "\t") + "\n" + "\n".join(ROWS).replace(",", "\t"),
        HEADER.replace(",", ", ") + "\n" + "\n".join(ROWS).replace(",", ", "),
        ",".join(f'"{name}"' for name in HEADER.split(",")) + "\n\n" + "\n".join(ROWS),
    ],
)
def test_other_ways_to_write_the_same(content, tmp_path):
    usual = read(tmp_path, HEADER + "\n" + "\n".join(ROWS))
    found = read(tmp_path, content)
    assert found.inputs.tolist() == usual.inputs.tolist()
    assert found.targets.tolist() == usual.targets.tolist()
    assert found.names == usual.names
    assert found.problems == {}


def test_an_open_quotation_mark_ends_with_its_line(tmp_path):
    found = read(tmp_path, "\n".join([HEADER, '"' + ROWS[0], ROWS[1], ROWS[2]]))
    assert found.broken.tolist() == [True, False, False]


def test_columns_can_be_in_any_order_and_be_ignored(tmp_path):
    encoding = Encoding(Schema.from_dict(VALUES | {"ignore": ["name"], "unit": "patient"}), "ill")
    found = read(tmp_path, "ill,name,patient,dose,sex,age\n1,Ann,p,5,F,54\n", encoding=encoding)
    assert found.inputs.tolist() == [[0.5, 0, 1, 0.5, 0]]
    assert found.owners == ("p",)
    with pytest.raises(ap.InvalidArgument, match="lacks 'patient'"):
        read(tmp_path, patients(2), encoding=encoding)


def test_the_order_of_columns_does_not_change_the_name_of_a_record(tmp_path):
    names = [read(tmp_path, text).names for text in ("age,sex,dose,ill\n1,M,2,0\n", "ill,dose,sex,age\n0,2,M,1\n")]
    assert names[0] == names[1]


def test_what_is_to_be_predicted_needs_no_target(tmp_path):
    (tmp_path / "new.csv").write_text("age,sex,dose\n54,M,5\n")
    assert ENCODING.read_inputs(tmp_path / "new.csv").targets is None
    (tmp_path / "new.csv").write_text("age,sex,dose,ill\n54,M,5,nonsense\n")
    assert ENCODING.read_inputs(tmp_path / "new.csv").problems == {}


def test_other_files_are_refused(tmp_path):
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    for path, words in [
        (tmp_path / "t.xlsx", "ending"),
        (tmp_path, "not a file"),
        (tmp_path / "no.csv", "no such file"),
    ]:
        with pytest.raises(ap.InvalidArgument, match=words):
            ENCODING.read(path)
    for source in (3, [[1, 2]], {"age": [1]}):
        with pytest.raises(ap.InvalidArgument, match="neither a file nor a data frame"):
            ENCODING.read(source)
    frame = pandas.DataFrame([[1, "M", 2, 0, 5]], columns=["age", "sex", "dose", "ill", "age"])
    with pytest.raises(ap.InvalidArgument, match="'age' twice"):
        ENCODING.read(frame)


def test_a_parquet_file_becomes_the_same_as_a_csv_file(tmp_path):
    usual = read(tmp_path, patients(50))
    pandas.read_csv(tmp_path / "t.csv").to_parquet(tmp_path / "t.parquet")
    found = ENCODING.read(tmp_path / "t.parquet")
    assert found.inputs.tolist() == usual.inputs.tolist()
    assert found.targets.tolist() == usual.targets.tolist()


def test_a_text_that_is_not_utf8_and_a_time_beyond_time_are_values(tmp_path):
    texts = pyarrow.StringArray.from_buffers(
        2, pyarrow.array([0, 1, 2], pyarrow.int32()).buffers()[1], pyarrow.py_buffer(b"M\xff")
    )
    times = pyarrow.array([1, 2**60], pyarrow.timestamp("ms"))
    for sex, first in ((texts, 1), (times, 0)):
        table = pyarrow.table({"age": [18, 90], "sex": sex, "dose": [1.0, 2.0], "ill": [0, 1]})
        parquet.write_table(table, tmp_path / "t.parquet")
        found = ENCODING.read(tmp_path / "t.parquet")
        assert found.inputs.tolist() == [[0, first, 0, pytest.approx(0.1), 0], [1, 0, 0, pytest.approx(0.2), 0]]
        assert found.targets.tolist() == [0, 1]


@pytest.mark.parametrize(
    "values",
    [
        pandas.to_datetime(["2020-01-01", None]),
        pandas.to_datetime(["2020-01-01", "2021-01-01"]).tz_localize("UTC"),
        pandas.to_timedelta([1, 2], "D"),
        [[1.0], [2.0, 3.0]],
        [{"years": 3}, {"years": 4}],
    ],
)
def test_a_range_of_a_column_without_numbers_is_refused_by_its_type(values, tmp_path):
    """Every age would be taken for the middle of the range, and nobody be told."""
    frame = pandas.DataFrame({"age": values, "sex": ["M", "F"], "dose": [1, 2], "ill": [0, 1]})
    frame.to_parquet(tmp_path / "t.parquet")
    sources = [tmp_path / "t.parquet", polars.from_pandas(frame)]
    for source in [*sources, frame] if frame["age"].dtype != object else sources:
        for reads in (ENCODING.read, ENCODING.read_public, ENCODING.read_inputs):
            with pytest.raises(ap.InvalidArgument, match="'age' is declared by a range and holds no numbers"):
                reads(source)


def test_what_is_not_a_parquet_file_is_refused(tmp_path):
    for content in (b"", b"PAR1", patients(3).encode()):
        with pytest.raises(ap.InvalidArgument, match="not a Parquet file"):
            read(tmp_path, content, "t.parquet")
    parquet.write_table(pyarrow.table({"age": [1]}), tmp_path / "t.parquet")
    with pytest.raises(ap.InvalidArgument, match="lacks 'sex', 'dose', 'ill'"):
        ENCODING.read(tmp_path / "t.parquet")


def test_parquet_without_its_extra_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr("apportion.extras.find_spec", lambda module: None)
    with pytest.raises(ap.MissingExtra, match=r"pip install \"apportion\[tables\]\""):
        ENCODING.read(tmp_path / "t.parquet")
