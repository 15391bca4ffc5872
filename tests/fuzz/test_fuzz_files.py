"""Files that are damaged, or well-formed and wrong: experiments, schedules, results, statements, ledgers and data."""

import contextlib
import gzip
import hashlib
import io
import json
import pickle
import shutil
import sqlite3
import tomllib

import numpy as np
import pytest
from fuzz_commands import BUDGET, EXPERIMENT, SCHEMA, TABLE, TABLE_TRAINING, TRAINING
from fuzz_share import share
from fuzz_values import NUMBERS, damaged, documents, mutated
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

# A ledger that makes a test fail is shown, however long it is.
pytestmark = pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")


def encoded(document):
    return json.dumps(document).encode()


# Experiments


def toml(value):
    """A value in TOML, which has no null: it becomes a text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(key)} = {toml(inner)}" for key, inner in value.items()) + "}"
    return (
        json.dumps(str(value).encode("utf-8", "replace").decode(), ensure_ascii=True)
        .replace("\\ud", "\\\\ud")
        .replace("\x7f", "")
    )


def shortened(content):
    """Options that keep a valid experiment short, should the damage have made it long; none where a value is refused anyway."""
    try:
        found = tomllib.loads(content.decode())
    except ValueError:
        return ()
    steps, rate = found.get("steps", 200), found.get("sample_rate", 0.2)
    long = isinstance(steps, int) and 9 < steps <= 10**6
    wide = isinstance(rate, (int, float)) and 0.02 < rate <= 1
    return (*(("--steps", "2") if long else ()), *(("--sample-rate", "0.01") if wide else ()))


def test_experiments(workshop, tally):
    good = tomllib.loads(EXPERIMENT)
    whole = mutated(good).filter(lambda document: isinstance(document, dict))
    written = whole.map(
        lambda document: "\n".join(f"{toml(key)} = {toml(value)}" for key, value in document.items()).encode()
    )

    @share(90)
    @given(written | damaged(EXPERIMENT.encode()))
    def check(content):
        line = ("compare", "mine.toml", "--out", "new", *shortened(content))
        tally(workshop.run(*line, files={"mine.toml": content}).refused)

    check()


# Tables


def test_tables(workshop, tally):
    """A file with any damage is refused for its structure, or trained on, whatever its records hold."""

    @share(30)
    @given(damaged(TABLE.encode()))
    def check(content):
        tally(workshop.run(*TABLE_TRAINING, files={"t.csv": content}).refused)

    check()


def test_records_of_tables(workshop, tally):
    """What is damaged behind the header is never refused."""
    header, rest = TABLE.encode().split(b"\n", 1)

    @share(20)
    @given(damaged(rest))
    def check(content):
        if content.strip():
            assert not workshop.run(*TABLE_TRAINING, files={"t.csv": header + b"\n" + content}).refused

    check()


def test_schemas(workshop, tally):
    written = mutated(tomllib.loads(SCHEMA)).filter(lambda document: isinstance(document, dict))
    written = written.map(
        lambda values: "\n".join(f"{toml(key)} = {toml(value)}" for key, value in values.items()).encode()
    )

    @share(30)
    @given(written | damaged(SCHEMA.encode()))
    def check(content):
        tally(workshop.run(*TABLE_TRAINING, files={"t.toml": content}).refused)

    check()


def test_encodings(workshop, tally):
    good = json.loads((workshop.original / "table-run/public/encoding.json").read_text())

    @share(30)
    @given(mutated(good).map(encoded) | damaged(encoded(good)))
    def check(content):
        line = ("predict", "table-run", "t.csv")
        tally(workshop.run(*line, files={"table-run/public/encoding.json": content}).refused)

    check()


# Schedules


def test_schedules_in_csv(workshop, tally):
    cell = st.sampled_from([*NUMBERS, "", "0.01", "1.0", "x", '"', "sample_rate", "\0"]) | st.text(max_size=4)
    header = st.sampled_from(
        [["sample_rate", "noise_multiplier", "count"], ["noise_multiplier", "sample_rate"]]
    ) | st.lists(cell, max_size=4)
    rows = st.lists(st.tuples(*[st.sampled_from(["0.5", "1", "0.01"]) | cell] * 3).map(list), max_size=3)
    files = st.builds(lambda first, rest: "\n".join(",".join(row) for row in [first, *rest]), header, rows)
    good = (workshop.original / "schedule.csv").read_bytes()

    @share(60)
    @given(
        files.map(lambda text: text.encode("utf-8", "replace")) | damaged(good),
        st.sampled_from([(), ("--all",), ("--group", "2")]),
    )
    def check(content, options):
        line = ("account", "mine.csv", "--delta", "1e-5", *options)
        tally(workshop.run(*line, files={"mine.csv": content}).refused)

    check()


def test_schedules_in_json(workshop, tally):
    good = {"history": [[1.0, 0.01, 10], {"sample_rate": 0.02, "noise_multiplier": 2.0, "count": 5}]}
    contents = (
        mutated(good).map(encoded)
        | damaged(encoded(good))
        | st.sampled_from([b"[" * 100_000, b"9" * 5000, b"[[1, 0.5, 9e999]]"])
    )

    @share(60)
    @given(contents)
    def check(content):
        tally(workshop.run("account", "mine.json", "--delta", "1e-5", files={"mine.json": content}).refused)

    check()


# Results and statements


def test_results(workshop, tally):
    good = json.loads((workshop.original / "results.json").read_text())
    contents = mutated(good).map(encoded) | damaged(encoded(good)) | documents().map(encoded)

    @share(60)
    @given(contents)
    def check(content):
        tally(workshop.run("report", "mine.json", files={"mine.json": content}).refused)

    check()


def test_statements(workshop, tally):
    good = json.loads((workshop.original / "run/public/privacy.json").read_text())
    parts = {key: good[key] for key in ("epsilon", "epsilon_spent", "delta", "private")}
    contents = mutated(parts).map(encoded) | damaged(encoded(good))

    @share(40)
    @given(contents)
    def check(content):
        outcome = workshop.run("account", "run", files={"run/public/privacy.json": content})
        tally(outcome.code)

    check()


# Ledgers

COMMANDS = st.sampled_from(
    [
        ("ledger", "show", "mine.sqlite"),
        ("ledger", "show", "mine.sqlite", "--json"),
        ("ledger", "verify", "mine.sqlite"),
        ("ledger", "export", "mine.sqlite"),
        ("ledger", "export", "mine.sqlite", "--json"),
        ("train", *TRAINING, *BUDGET, "--out", "new", "--ledger", "mine.sqlite"),
    ]
)


def check_ledger(workshop, content, line):
    """What is damaged is refused, or shown with a warning; nothing is ever charged to it. Returns whether anybody was told."""
    # Damage to an index may show only when the first charge is written. It is refused then, and nothing was released, but the
    # checkpoint of step 0 is there already.
    outcome = workshop.run(*line, files={"mine.sqlite": content}, leftover=("new/secret/checkpoint",))
    if workshop.run("ledger", "verify", "mine.sqlite", files={"mine.sqlite": content}).code:
        assert line[0] != "train" or outcome.refused, outcome
        return True
    return outcome.code != 0


def test_ledgers_with_damaged_bytes(workshop, tally):
    good = (workshop.original / "shared.sqlite").read_bytes()

    @share(60)
    @given(damaged(good), COMMANDS)
    def check(content, line):
        tally(check_ledger(workshop, content, line))

    check()


def rewritten(original, changes):
    """The ledger with other contents in its rows, and hashes that fit: as somebody would who knows how."""
    path = original.with_name("rewritten.sqlite")
    shutil.copy(original, path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        previous = ""
        for number, run, step, content, written in connection.execute(
            "SELECT number, run, step, content, written FROM entries"
        ).fetchall():
            content = changes.get(number, content)
            previous = hashlib.sha256(
                json.dumps([previous, number, run, step, content, written], default=repr).encode()
            ).hexdigest()
            connection.execute("UPDATE entries SET content = ?, hash = ? WHERE number = ?", (content, previous, number))
        for _, sql in triggers:
            connection.execute(sql)
        connection.commit()
    return path.read_bytes()


def test_ledgers_with_other_rows(workshop, tally):
    original = workshop.original / "shared.sqlite"
    with contextlib.closing(sqlite3.connect(original)) as connection:
        rows = [json.loads(text) for (text,) in connection.execute("SELECT content FROM entries ORDER BY number")]
    numbers = st.integers(1, len(rows))
    contents = numbers.flatmap(
        lambda number: st.tuples(
            st.just(number),
            mutated(rows[number - 1]).map(json.dumps)
            | st.sampled_from(["", "null", "[]", "{", "9" * 5000, "[" * 5000, b"\xff", 1, 2.5]),
        )
    )

    @share(60)
    @given(contents, COMMANDS)
    def check(change, line):
        tally(check_ledger(workshop, rewritten(original, dict([change])), line))

    check()


def test_files_that_are_no_ledgers(workshop, tally, tmp_path):
    statements = st.sampled_from(
        [
            "CREATE TABLE other (a, b)",
            "CREATE TABLE entries (a)",
            "CREATE TABLE entries (number, run, step, content, written, hash)",
            "CREATE VIEW entries AS SELECT 1 AS run",
            "CREATE TABLE sqlite_stat (a)",
            "INSERT INTO entries VALUES (1, 0, 0, '{}', '', '')",
            "INSERT INTO entries VALUES (1, 0, 0, NULL, NULL, NULL)",
            "INSERT INTO entries VALUES ('a', 0, 0, x'ff', 1, 2)",
            "PRAGMA user_version = 7",
            "PRAGMA encoding = 'UTF-16'",
        ]
    )

    @share(40)
    @given(st.lists(statements, min_size=1, max_size=4), COMMANDS)
    def check(several, line):
        path = tmp_path / "other.sqlite"
        path.unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            for statement in several:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute(statement)
            connection.commit()
        content = path.read_bytes() if path.exists() else b""
        told = check_ledger(workshop, content, line)
        assert told, "a file that is no ledger passed for one"
        tally(told)

    check()


# Data


def picture(size=(8, 8), mode="RGB"):
    stream = io.BytesIO()
    Image.new(mode, size).save(stream, "PNG")
    return stream.getvalue()


def test_folders_of_images(workshop, tally):
    names = st.sampled_from(
        [
            "train/a/1.png",
            "train/b/2.png",
            "test/a/3.png",
            "test/c/4.png",
            "a/5.png",
            "b/6.jpg",
            "b/images/7.png",
            "val/val_annotations.txt",
            "train",
        ]
    )
    pictures = st.sampled_from(
        [picture(), picture((4, 4)), picture((8, 8), "L"), picture((1, 1)), b"", b"3.png\ta\n"]
    ) | damaged(picture())

    @share(60)
    @given(st.dictionaries(names, pictures, max_size=5))
    def check(files):
        if "train" in files and any(name.startswith("train/") for name in files):
            del files["train"]
        line = ("train", "--data", "folder:images", *TRAINING[4:], *BUDGET, "--out", "new")
        tally(workshop.run(*line, files={f"images/{name}": content for name, content in files.items()}).refused)

    check()


def idx(shape, kind=8):
    return bytes([0, 0, kind, len(shape)]) + np.array(shape, ">u4").tobytes() + bytes(int(np.prod(shape)))


def cifar():
    return pickle.dumps({"data": np.zeros((3, 3072), np.uint8), "labels": [0, 1, 2]}, protocol=4)


def adult():
    return (
        b"39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, "
        b"United-States, <=50K\n"
    )


DATA = {
    "mnist": {
        "train-images-idx3-ubyte": idx((3, 28, 28)),
        "train-labels-idx1-ubyte": idx((3,)),
        "t10k-images-idx3-ubyte": idx((2, 28, 28)),
        "t10k-labels-idx1-ubyte.gz": gzip.compress(idx((2,))),
        "qmnist-train-labels-idx2-int": idx((3, 8), 12) + bytes(72),
    },
    "cifar10": {f"data_batch_{number}": cifar() for number in range(1, 6)} | {"test_batch": cifar()},
    "adult": {"adult.data": adult() * 3, "adult.test": b"|header\n" + adult()},
    "imdb": {"train.tsv": b"0\t1\ta bad film\n1\t9\ta good film\n", "test.tsv": b"0\t1\tbad\n"},
}


def npz(**arrays):
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


@pytest.mark.parametrize("name", sorted(DATA))
def test_data_sets(workshop, tally, name):
    files = DATA[name]
    model = {"imdb": "embedding"}.get(name, "linear")
    line = ("train", "--data", name, "--data-dir", "place", "--model", model, *TRAINING[4:], *BUDGET, "--out", "new")
    whole = {f"place/{name}/{file}": content for file, content in files.items()}
    assert workshop.run(*line, files=whole).code == 0

    @share(20)
    @given(st.sampled_from(sorted(files)).flatmap(lambda file: st.tuples(st.just(file), damaged(files[file]))))
    def check(change):
        file, content = change
        tally(workshop.run(*line, files=whole | {f"place/{name}/{file}": content}).refused)

    check()


def test_arrays_of_cifar(workshop, tally):
    shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple) | st.just((2, 32, 32, 3))
    arrays = st.builds(
        lambda shape, kind: np.zeros(shape, kind), shapes, st.sampled_from(["u1", "f4", "i8", "U3", "c8", "M8[s]", "?"])
    )
    contents = st.dictionaries(st.sampled_from(["x_train", "y_train", "x_test", "y_test", "other"]), arrays, max_size=5)
    line = (
        "train",
        "--data",
        "cifar10",
        "--data-dir",
        "place",
        "--model",
        "linear",
        *TRAINING[4:],
        *BUDGET,
        "--out",
        "new",
    )

    @share(40)
    @given(contents.map(lambda content: npz(**content)) | damaged(npz(x_train=np.zeros((2, 32, 32, 3), "u1"))))
    def check(content):
        tally(workshop.run(*line, files={"place/cifar10/cifar10.npz": content}).refused)

    check()
