"""`apportion audit replay` as a person and as a script use it."""

import json

import pytest

import apportion as ap
from apportion.cli.main import main

OWN = """
import torch
from torch import nn
import apportion as ap
from apportion.releases import ClippedSum

def model():
    return nn.Linear(4, 1)

def loss():
    return nn.MSELoss()

def data():
    inputs = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    return (inputs, inputs.sum(1, keepdim=True)), None

class Grouped:
    def init(self, context): return None
    def propose(self, state, context):
        return tuple(ClippedSum(0.1, (name,), 0.5) for name in context.parameter_shapes)
    def observe(self, state, released): return None

class Leaky(Grouped):
    def propose(self, state, context):
        import sys
        frame = sys._getframe()
        while frame and not hasattr(frame.f_locals.get("session"), "curator"):
            frame = frame.f_back
        size = len(frame.f_locals["session"].curator._records) if frame else 1
        return (ClippedSum(0.1 * size),)

class Failing(Grouped):
    def propose(self, state, context): raise KeyError("no such thing")

def schedule():
    return ap.noise.Constant(multiplier=0.7)
"""


@pytest.fixture
def replay(capsys, monkeypatch, tmp_path):
    """Run the command beside a file own.py; returns exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "own.py").write_text(OWN)

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main(["audit", "replay", *arguments])
        printed = capsys.readouterr()
        return stop.value.code or 0, printed.out, printed.err

    return run


def test_a_recipe_on_built_in_data(replay):
    code, out, _ = replay("--model", "linear", "--recipe", "lin-decay", "--set", "clip.start=0.3", "--steps", "2")
    assert code == 0
    assert "replaced by NaN" in out
    assert "No violation: 20 steps" in out


def test_the_recipe_of_a_plan(replay, tmp_path):
    budget = ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())
    plan = ap.plan("adadp", budget=budget, population=1437, batch_size=128, steps=20)
    (tmp_path / "plan.json").write_text(plan.to_json())
    code, out, _ = replay("--model", "linear", "--plan", "plan.json", "--steps", "2")
    assert code == 0
    assert "No violation: 20 steps" in out
    for option, value in (("recipe", "abadi"), ("set", "clip.threshold=1"), ("clip", "own:Grouped")):
        code, _, err = replay("--plan", "plan.json", f"--{option}", value)
        assert code == 2
        assert f"{option}=" in err
        assert "plan.json says it already" in err
    code, _, err = replay("--plan", "none.json")
    assert code == 2
    assert "none.json" in err


def test_a_model_data_loss_and_strategies_of_ones_own(replay):
    parts = ["--model", "own:model", "--data", "own:data", "--loss", "own:loss"]
    code, out, _ = replay(*parts, "--clip", "own:Grouped", "--noise", "own:schedule", "--micro-batch", "3", "--json")
    report = json.loads(out.strip().splitlines()[-1])
    assert code == 0
    assert report["ok"]
    assert report["sharp"]
    assert report["noise_calls"] == 2 * report["steps"] + 3 * len(report["neighbours"])


def test_a_violation_exits_with_one(replay):
    code, out, _ = replay("--model", "linear", "--clip", "own:Leaky")
    assert code == 1
    assert "request: record added, step 1: the strategies asked something else" in out
    assert "The guarantee does not hold" in out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--recipe", "non-private"], "recipe='non-private'"),
        (["--recipe", "abbadi"], "Did you mean 'abadi'"),
        (["--set", "clip.treshold=1"], "set clip.treshold"),
        (["--steps", "1"], "steps=1"),
        (["--micro-batch", "0"], "micro_batch=0"),
        (["--clip", "own:nothing"], "clip='own:nothing'"),
        (["--clip", "own:schedule"], "it is not a clip strategy"),
        (["--clip", "own:Failing"], "KeyError: 'no such thing'"),
        (["--data", "own:data"], "built-in models do not know"),
    ],
)
def test_bad_input_is_one_line_and_code_two(replay, arguments, complaint):
    code, out, err = replay(*arguments)
    assert code == 2
    assert complaint in err
    assert len(err.strip().splitlines()) == 1
    assert not out
