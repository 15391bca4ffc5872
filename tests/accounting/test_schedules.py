"""Schedules from files, and the example that prices a run of Opacus."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from apportion.accounting.schedules import read_schedule, schedule_from_history
from apportion.errors import InvalidArgument
from apportion.event import Event

EXPECTED = {Event(0.01, 1.5): 200, Event(0.02, 1.0): 1}
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "price_an_opacus_run.py"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "sample_rate,noise_multiplier,count\n0.01,1.5,200\n0.02,1,1\n"),
        ("a.csv", "\ufeffcount, noise_multiplier, sample_rate\r\n100,1.5,0.01\r\n\r\n1e2,1.5,0.01\r\n1,1,0.02\r\n"),
        ("a.CSV", "sample_rate,noise_multiplier\n" + 200 * "0.01,1.5\n" + '"0.02",1\n'),
        ("a.json", json.dumps([[1.5, 0.01, 200], [1.0, 0.02, 1]])),
        ("a.json", json.dumps({"history": [[1.5, 0.01, 200], [1, 0.02, 1]], "mechanism": "rdp"})),
        (
            "a.json",
            json.dumps(
                [
                    {"sample_rate": 0.01, "noise_multiplier": 1.5, "count": 200},
                    {"noise_multiplier": 1, "sample_rate": 0.02},
                ]
            ),
        ),
    ],
)
def test_formats(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    assert read_schedule(tmp_path / name) == EXPECTED


def test_history_of_a_living_accountant():
    assert schedule_from_history([(1.5, 0.01, 200), (1.0, 0.02, 1)]) == EXPECTED
    assert schedule_from_history([]) == {}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "", "line 1.*sample_rate is missing"),
        ("a.csv", "sample_rate,noise_multiplier,count\n", "no steps"),
        ("a.csv", "0.01,1.5,200\n", r"line 1, column='0.01': there is no such column"),
        ("a.csv", "sample_rate,noise_multiplyer\n", "Did you mean 'noise_multiplier'"),
        ("a.csv", "sample_rate,sample_rate,noise_multiplier\n", "twice"),
        ("a.csv", "sample_rate,noise_multiplier\n0.1,1\n0.1,x\n", "a.csv, line 3, column noise_multiplier='x'"),
        ("a.csv", "sample_rate,noise_multiplier\n0.1,nan\n", "line 2, column noise_multiplier=nan"),
        ("a.csv", "sample_rate,noise_multiplier\n1.5,1\n", "line 2, column sample_rate=1.5"),
        ("a.csv", "sample_rate,noise_multiplier\n0.1,0\n", "column noise_multiplier=0.0"),
        ("a.csv", "sample_rate,noise_multiplier\n0.1\n", "line 2=.*2 fields are needed"),
        ("a.csv", "sample_rate,noise_multiplier,count\n0.1,1,2.5\n", "column count=2.5"),
        ("a.csv", "sample_rate,noise_multiplier,count\n0.1,1,0\n", "column count=0"),
        ("a.csv", 'sample_rate,noise_multiplier\n"0.1,1\n', "not CSV"),
        ("a.json", "[[1.5, 0.01", "a.json, line 1, column 12.*not JSON"),
        ("a.json", 100_000 * "[", "not JSON"),
        ("a.json", "7", "a list of steps is needed"),
        ("a.json", "[]", "no steps"),
        ("a.json", '{"steps": []}', "without 'history'"),
        ("a.json", "[[1.5, 0.01]]", r"a.json, entry 1=\[1.5, 0.01\]: it is not a step"),
        ("a.json", '["abc"]', "entry 1='abc'"),
        ("a.json", "[[1.5, 0.01, 1], [0, 0.01, 1]]", "entry 2, column noise_multiplier=0"),
        ("a.json", '[["1.5", 0.01, 1]]', "entry 1, column noise_multiplier='1.5': a number"),
        ("a.json", "[[1.5, 0.01, true]]", "column count=True"),
        ("a.json", "[[1.5, 0.01, NaN]]", "column count=nan"),
        ("a.json", '[{"sample_rate": 0.1, "noise_multiplyer": 1}]', "Did you mean 'noise_multiplier'"),
        ("a.json", '[{"sample_rate": 0.1}]', "noise_multiplier is missing"),
        ("a.txt", "", "neither .csv nor .json"),
    ],
)
def test_what_is_wrong_and_where(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidArgument) as refusal:
        read_schedule(tmp_path / name)
    assert re.search(words, str(refusal.value)), str(refusal.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_schedule(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidArgument, match="UTF-8"):
        read_schedule(tmp_path / "binary.csv")


def test_the_example_prices_an_opacus_run_without_torch(tmp_path):
    (tmp_path / "history.json").write_text(json.dumps({"history": [[1.1, 0.004, 100]], "mechanism": "prv"}))
    for arguments in ([], [str(tmp_path / "history.json")]):
        done = subprocess.run(
            [sys.executable, "-W", "error", str(EXAMPLE), *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "not an upper bound" in done.stdout
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 20
