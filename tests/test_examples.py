"""The scripts in examples/ are short, and run."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import apportion as ap

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_how_it_is_run(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    assert f"python examples/{path.name}" in text


def test_budgets_of_people(capsys):
    path = next(path for path in EXAMPLES if path.stem == "budgets_of_people")
    runpy.run_path(str(path))["main"](steps=10)
    out = capsys.readouterr().out
    assert out.count("accuracy") == 2
    assert "open: ε = " in out


def test_federated_mnist(capsys):
    """With every recipe, on made-up images and few clients."""
    path = next(path for path in EXAMPLES if path.stem == "federated_mnist")
    names = runpy.run_path(str(path))
    generator = torch.Generator().manual_seed(0)
    records = torch.rand(100, 1, 28, 28, generator=generator), torch.randint(10, (100,), generator=generator)
    mnist = SimpleNamespace(train=records, test=ap.Public(records))
    names["main"](8.0, images=2, rate=0.1, rounds=2, mnist=mnist)
    out = capsys.readouterr().out
    assert [line.partition(":")[0] for line in out.splitlines()] == list(names["RECIPES"])
