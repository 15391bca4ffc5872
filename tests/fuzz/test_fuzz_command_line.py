"""Command lines with wrong, missing, doubled and unknown parts: exit code 2, one line, no charge."""

import itertools

import pytest
from fuzz_commands import VALID, commands
from fuzz_share import share
from fuzz_values import texts
from hypothesis import assume, given
from hypothesis import strategies as st

from apportion.errors import InvalidArgument
from apportion.sampling import Sampling

OPTIONS = commands()


@st.composite
def command_lines(draw, name):
    """The valid line of a command with one to three parts changed."""
    line = [*name.split(), *VALID[name]]
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        first = len(name.split())
        places = range(first, len(line)) or [0]
        at = draw(st.sampled_from(places))
        way = draw(
            st.sampled_from(
                ["value", "value", "value", "value", "option", "option", "drop", "stray", "repeat", "command"]
            )
        )
        if way == "value":
            wanted = [i for i in places if not line[i].startswith("--")] or [at]
            line[draw(st.sampled_from(wanted))] = draw(texts())
        elif way == "option" and OPTIONS[name]:
            option, takes_value = draw(st.sampled_from(OPTIONS[name]))
            line += [option, draw(texts())] if takes_value else [option]
        elif way == "drop":
            del line[at]
        elif way == "repeat":
            line.insert(at, line[at])
        elif way == "command" and draw(st.integers(0, 3)) == 0:
            line[0] = draw(texts())
        else:
            line.insert(at, draw(texts()))
    return line


def test_every_command_is_fuzzed():
    assert set(OPTIONS) == set(VALID), "give each command a small valid line in tests/fuzz/fuzz_commands.py"


@pytest.mark.parametrize("name", sorted(VALID))
def test_valid_lines_are_valid(workshop, name):
    code = workshop.run(*name.split(), *VALID[name]).code
    assert code == (2 if name == "data fetch" else 0)  # there is no network


WEIGHTS = {"train": 150, "compare": 100, "plan": 80, "account": 50}


@pytest.mark.parametrize("name", sorted(VALID))
def test_command_lines(workshop, tally, name):
    @share(WEIGHTS.get(name, 20))
    @given(command_lines(name))
    def check(line):
        assume(not _endless(line))
        tally(workshop.run(*line).refused)

    check()


def _endless(line):
    """Whether a number decides how long a run is, and is large."""
    deciding = ("--spare", "--steps", "--epochs", "--batch-size", "--population", "--sample-rate")
    pairs = itertools.pairwise(line)
    return any(option in deciding and (len(value) > 4 or "e" in value) for option, value in pairs)


@pytest.mark.parametrize("length", [{"steps": 10**30}, {"epochs": 1e308}, {"steps": 1_000_001}])
def test_endless_runs_are_refused(length):
    with pytest.raises(InvalidArgument, match="more than 1,000,000 steps"):
        Sampling.declare(population=10, sample_rate=0.5, **length)
