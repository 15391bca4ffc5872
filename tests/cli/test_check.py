"""`apportion check`: the rule of every layer, the memory and the cost of private training."""

import json
import re

import pytest
from typer.testing import CliRunner

from apportion.cli.main import app


def check(*arguments):
    return CliRunner().invoke(app, ["check", "--model", "cnn", "--data", "digits", *arguments], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def engine():
    done = check("--json")
    assert done.exit_code == 0
    return json.loads(done.stdout.splitlines()[-1])["engine"]


def test_every_layer_has_a_rule(engine):
    assert engine["mode"].startswith("one-pass")
    assert engine["fallbacks"] == []
    assert {name.rpartition(".")[0] for name in engine["kernels"]} == {"0", "3", "7", "9"}


def test_memory_grows_with_the_records(engine):
    assert engine["physical_batch"] == 603  # 512 and room for chance
    assert engine["memory_per_record"] > 8 * 8 * 4  # a record's pixels at the very least
    assert engine["memory"] > 128 * engine["memory_per_record"]


def test_a_private_gradient_is_not_free(engine):
    assert 0.2 < engine["relative_cost"] < 1000


def test_a_limit_chooses_the_records(engine):
    done = check("--memory-limit", "8MB", "--json")
    found = json.loads(done.stdout.splitlines()[-1])["engine"]
    assert found["memory"] <= 8e6 < found["memory"] + 9 * found["memory_per_record"]
    assert found["physical_batch"] % 8 == 0


def test_people_are_told():
    done = check("--memory-limit", "50MB")
    assert done.exit_code == 0
    words = " ".join(done.stdout.split())
    assert re.search(
        r"Memory, predicted: \S+ MB with [\d,]+ records at one time, \S+ kB for each further record", words
    )
    assert re.search(r"quick estimate: a private gradient takes [\d.]+ times an ordinary one", words)


@pytest.mark.parametrize("limit", ["1kB", "much"])
def test_a_limit_that_cannot_be_kept_is_refused(limit):
    assert "memory_limit=" in str(check("--memory-limit", limit).exception)
