"""The scripts in examples/ are short, and run."""

import runpy
from pathlib import Path

import pytest

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
