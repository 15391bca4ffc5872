"""Run a command in this process, in a folder of its own, and see what a person and the ledgers would see."""

import contextlib
import io
import json
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from safetensors.torch import save_file

from apportion.cli.main import app, main
from apportion.compare.table_models import build_table_model
from apportion.tables import Encoding

sys.path.insert(0, str(Path(__file__).parents[1] / "tables"))
from made_tables import SCHEMA

PATIENCE = 10.0
"""Seconds of computing after which a command hangs; sleeping, it may take six times as long, for other programs compute too."""

MEMORY = 6 << 30
"""Bytes of address space, far above what any command needs: what asks for more fails here, and does not bring down the machine."""

BUDGET = ("--epsilon", "3", "--delta", "1e-5", "--unit", "record", "--population", "1437")
TRAINING = ("--data", "digits", "--model", "linear", "--sample-rate", "0.01", "--steps", "2", "--lr", "1")

VALID = {
    "train": (
        *TRAINING,
        *BUDGET,
        "--recipe",
        "lin-decay",
        "--set",
        "clip.start=0.5",
        "--out",
        "new",
        "--ledger",
        "shared.sqlite",
        "--log",
        "csv:new.csv",
        "--min-delta",
        "0.1",
        "--patience",
        "1",
        "--features",
        "scatter",
    ),
    "compare": (
        *(*TRAINING, *BUDGET, "--recipe", "abadi", "--clip", "Decay", "--patience", "2", "--evaluate-every", "1"),
        *("--ledger", "shared.sqlite", "--out", "new", "--views", "2 flip"),
    ),
    "predict": ("table-run", "t.csv", "--out", "new.csv", "--id", "age"),
    "plan": (
        "--recipe",
        "du-growing",
        "--sample-rate",
        "0.01",
        "--steps",
        "3",
        *BUDGET,
        "--calibrate",
        "pld",
        "--html",
        "new.html",
    ),
    "search": (
        *("--data", "digits", "--model", "linear", "--noise-multiplier", "2", "--batch-size", "64"),
        *("--method", "fast", "--epochs", "1", "--runs", "1", "--processes", "1", "--out", "new.json"),
    ),
    "tune": (
        *("--data", "digits", "--model", "linear", "--sample-rate", "0.01", "--steps", "2", "--vary", "lr=0.5,1"),
        *(*BUDGET, "--recipe", "abadi", "--expected-trials", "3", "--distribution", "geometric"),
        *("--ledger", "shared.sqlite", "--out", "new", "--dry-run"),
    ),
    "statistics": (
        *("--data", "digits", "--of", "histogram", "--classes", "10", "--epsilon", "0.5", "--unit", "record"),
    ),
    "pate": (
        *("--data", "digits", "--teachers", "6", "--queries", "5", "--group", "all:3:1", "--delta", "1e-5"),
        *("--unit", "record", "--processes", "1", "--seed", "1", "--out", "new"),
    ),
    "advise": (
        *("--population", "1437", "--sample-rate", "0.01", "--steps", "3", "--epsilon", "1", "--delta", "1e-5"),
        *("--runs", "2", "--dry-run", "digits", "--model", "linear", "--out", "new.html"),
    ),
    "statement": ("run", "--format", "html", "--out", "new.html"),
    "recipes": ("du-dynamic", "--set", "noise.ratio=3", "--html", "new.html"),
    "account": ("schedule.csv", "--delta", "1e-5"),
    "report": ("results.json", "--out", "new.html"),
    "check": ("--model", "linear", "--data", "t.csv", "--schema", "t.toml", "--target", "ill"),
    "data list": ("--json",),
    "data fetch": ("mnist", "--data-dir", "new"),
    "data where": ("digits",),
    "data schema": (
        *("t.csv", "--private", "--epsilon", "0.5", "--delta", "1e-6", "--numbers", "age:0:120", "--texts", "sex"),
        *("--categories", "ill=0,1", "--ledger", "shared.sqlite", "--encoding", "latin-1", "--out", "new.toml"),
    ),
    "ledger limit": (
        "new.sqlite",
        "--name",
        "mine",
        "--epsilon",
        "3",
        "--delta",
        "1e-5",
        "--unit",
        "record",
        "--rule",
        "sum",
    ),
    "ledger show": ("shared.sqlite", "--json"),
    "ledger verify": ("shared.sqlite",),
    "ledger export": ("shared.sqlite", "--csv"),
    "audit replay": ("--model", "linear", "--data", "digits", "--steps", "2"),
    "audit run": ("--model", "linear", "--data", "digits", "--steps", "2", "--canaries", "100", "--out", "new.html"),
}
"""A small valid line for every command. Whoever adds a command adds its line here."""

FINDINGS = ("account", "check", "compare", "ledger verify", "audit replay", "audit run")
"""Commands that answer "no" with exit code 1, which is no error."""


def commands():
    """Every command with its options, as the program knows them: (option, whether it takes a value)."""
    found = {}

    def walk(command, name):
        for inner, child in getattr(command, "commands", {}).items():
            walk(child, [*name, inner])
        if not hasattr(command, "commands"):
            options = [p for p in command.params if p.param_type_name == "option"]
            found[" ".join(name)] = [(p.opts[0], not p.is_flag) for p in options]

    walk(typer.main.get_command(app), [])
    return found


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    arguments: tuple[str, ...]
    code: int
    out: str
    err: str
    changed: tuple[str, ...]

    @property
    def refused(self):
        return self.code == 2


class Hang(BaseException):
    """Not an Exception, so that no handler of the program takes it for its own."""


class Workshop:
    """A folder with small valid and invalid files, of which every command gets a fresh copy."""

    def __init__(self, original):
        self.original = original

    def run(self, *arguments, files=None, leftover=()):
        """Run a command with these files added, and check what holds for every command line, right or wrong.

        `leftover` names files that a refused command may leave behind.
        """
        with tempfile.TemporaryDirectory(dir=self.original.parent) as name:
            folder = Path(name, "here")
            shutil.copytree(self.original, folder)
            for path, content in (files or {}).items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(content)
            before = charges(folder)
            with contextlib.chdir(folder):
                code, out, err = call(arguments)
            after = charges(folder)
            changed = sorted(key for key in after if after[key] != before.get(key) and key not in leftover)
            outcome = Outcome(arguments, code, out, err, tuple(changed))
        require_well_behaved(outcome)
        return outcome


@contextlib.contextmanager
def no_hang(patience):
    """Fail in the middle of what takes too long, and with `MemoryError` in what takes too much."""

    def too_long(*_):
        raise Hang(f"it took longer than {patience} s")

    clocks = {signal.SIGPROF: (signal.ITIMER_PROF, patience), signal.SIGALRM: (signal.ITIMER_REAL, 6 * patience)}
    for sign in clocks:
        signal.signal(sign, too_long)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    most = MEMORY if limits[1] == resource.RLIM_INFINITY else min(MEMORY, limits[1])
    resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
    for clock, seconds in clocks.values():
        signal.setitimer(clock, seconds, 0.5)  # again, should the first fall into a place where exceptions are lost
    try:
        yield
    except Hang as hang:  # here it is a failure like any other, which hypothesis can show with its input
        raise AssertionError(str(hang)) from hang
    finally:
        for sign, (clock, _) in clocks.items():
            signal.signal(sign, signal.SIG_IGN)  # and it stays ignored: by default a late signal would end this process
            signal.setitimer(clock, 0)
        resource.setrlimit(resource.RLIMIT_AS, limits)


def call(arguments, patience=PATIENCE):
    """Exit code, standard output and standard error of a command; an exception that leaves it is a traceback."""

    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings(), no_hang(patience):
        warnings.simplefilter("default")
        warnings.simplefilter("error", RuntimeWarning)  # numbers out of hand, which no person should have to read
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
    return stop.value.code or 0, out.buffer.getvalue().decode(), err.buffer.getvalue().decode()


def charges(folder):
    """What every ledger, and every file of a run's secret, holds: rows where they can be counted, else the bytes."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and (path.suffix == ".sqlite" or "secret" in path.parts):
            found[str(path.relative_to(folder))] = _rows(path)
    return found


def _rows(path):
    content = path.read_bytes()
    try:
        with contextlib.closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as connection:
            return connection.execute("SELECT COUNT(*) FROM entries").fetchone()[0]
    except (sqlite3.Error, UnicodeDecodeError):
        return content


def require_well_behaved(outcome):
    """One line and exit code 2 for what is refused, and then nothing was charged."""
    command = outcome.arguments
    errors = [line for line in outcome.err.splitlines() if line.startswith("error:")]
    finding = outcome.code == 1 and any(" ".join(command[: len(name.split())]) == name for name in FINDINGS)
    assert outcome.code in (0, 2) or finding, outcome
    assert "Traceback" not in outcome.err, outcome
    if outcome.refused and "Usage:" in outcome.out:  # without a command: the help
        assert not outcome.err, outcome
    elif outcome.refused:
        assert len(errors) == 1, outcome
        assert not outcome.changed, outcome
    elif outcome.code == 0:
        assert not errors, outcome


def build(folder):
    """The files of a workshop: a run, a ledger, schedules, results, an experiment, and things that are none of these."""
    folder.mkdir()
    (folder / "folder").mkdir()
    (folder / "empty").write_bytes(b"")
    (folder / "binary").write_bytes(bytes(range(256)) * 8)
    (folder / "schedule.csv").write_text("sample_rate,noise_multiplier,count\n0.01,1.0,10\n0.02,2.0,5\n")
    (folder / "history.json").write_text(json.dumps({"history": [[1.0, 0.01, 10], [2.0, 0.02, 5]]}))
    (folder / "experiment.toml").write_text(EXPERIMENT)
    (folder / "mine.py").write_text(
        "import torch\ndef model():\n    return torch.nn.Linear(64, 10)\ndef nothing():\n    return None\n"
        "def fails():\n    raise KeyError('a\\nb')\ndef data():\n    return (1, 2)\nfour = 4\n"
    )
    (folder / "broken.py").write_text("def model(:\n")
    build_table(folder)
    shared = (
        "ledger",
        "limit",
        "shared.sqlite",
        "--name",
        "digits",
        "--epsilon",
        "8",
        "--delta",
        "1e-4",
        "--unit",
        "record",
    )
    train = ("train", *TRAINING, *BUDGET, "--recipe", "du-growing", "--out", "run", "--ledger", "shared.sqlite")
    with contextlib.chdir(folder):
        for line in (shared, train):
            code, _, err = call(line, patience=60.0)  # imports too
            assert code == 0, err
    shutil.copy(folder / "run" / "results.json", folder / "results.json")
    (folder / "run" / "report.html").unlink()  # megabytes, to be copied for every command
    return Workshop(folder)


def build_table(folder):
    """A table, its schema, and a folder with a model that was trained on it."""
    (folder / "t.csv").write_text(TABLE)
    (folder / "t.toml").write_text(SCHEMA)
    encoding = Encoding(folder / "t.toml", "ill")
    encoding.save(folder / "table-run", model="linear")
    weights = build_table_model("linear", encoding).state_dict()
    save_file(weights, folder / "table-run" / "public" / "weights.safetensors")


TABLE = "age,sex,dose,ill\n" + "".join(
    f"{20 + number},{'MF'[number % 2]},{number / 10},{number % 2}\n" for number in range(40)
)
TABLE_TRAINING = (
    *("train", "--data", "t.csv", "--target", "ill", "--schema", "t.toml", "--model", "linear", "--sample-rate", "0.1"),
    *(
        "--steps",
        "2",
        "--epsilon",
        "3",
        "--delta",
        "1e-5",
        "--unit",
        "record",
        "--population",
        "40",
        "--no-count-usable",
    ),
    *("--holdout", "0.2", "--out", "new"),
)

EXPERIMENT = """
title = "Two recipes"
data = "digits"
model = "linear"
epsilon = 3.0
delta = 1e-5
unit = "record"
population = 1437
sample_rate = 0.01
steps = 2
lr = 1.0
optimizer = "sgd"
seeds = [1]
micro_batch = 64
[[recipe]]
name = "abadi"
label = "plain"
clip.threshold = 0.2
[[recipe]]
name = "non-private"
lr = 0.5
"""


def isolate(monkeypatch, tmp_path):
    """No network, no data sets of this machine, no standard input."""
    from apportion.data import fetch, packages, places
    from apportion.data.download import Unreachable

    def unreachable(*_):
        raise Unreachable("there is no network in this test")

    monkeypatch.setattr(fetch, "download", unreachable)
    monkeypatch.setattr(packages, "download", unreachable)
    monkeypatch.setattr(places, "DEBIAN", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(places.VARIABLE, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys, "path", list(sys.path))
