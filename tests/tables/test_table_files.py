"""The structure of a table, its header and its format, is public: what is wrong there is one sentence. Records never are."""

import tomllib

import pandas
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
        (HEADER, "no records"),
        (HEADER + "\n\n \n", "no records"),
        ("age,sex,ill\n1,M,0\n", "its header lacks 'dose'"),
        (HEADER + ",age\n1,M,1,1,1\n", "has 'age' twice"),
        (HEADER + ",name\n1,M,1,1,x\n", r"schema does not have: 'name'\. .*ignore = \['name'\]"),
        ("," + HEADER + "\n0,1,M,1,1\n", "without a name"),
        (HEADER.encode("utf-16") + b"\n", "not text in UTF-8"),
        (b"PAR1\x00\x00\x15\x04", "not text in UTF-8"),
        ("äge,sex\n".encode("latin-1"), "not text in UTF-8"),
    ],
)
def test_a_structure_that_is_wrong_is_refused(content, words, tmp_path):
    with pytest.raises(ap.InvalidArgument, match=words):
        read(tmp_path, content)


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
    table = pyarrow.table({"age": times, "sex": texts, "dose": [1.0, 2.0], "ill": [0, 1]})
    parquet.write_table(table, tmp_path / "t.parquet")
    found = ENCODING.read(tmp_path / "t.parquet")
    assert found.inputs[:, 1:].tolist() == [[1, 0, pytest.approx(0.1), 0], [0, 0, pytest.approx(0.2), 0]]
    assert found.targets.tolist() == [0, 1]


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
