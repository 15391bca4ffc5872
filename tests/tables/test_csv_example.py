"""The example script runs, and default settings are good enough for a table."""

import json
import runpy
from pathlib import Path

import pytest
from made_tables import SCHEMA, patients

from apportion.cli.main import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_from_csv.py"


@pytest.mark.slow
def test_the_example_predicts(tmp_path, capsys):
    names = runpy.run_path(str(EXAMPLE))
    names["main"](names["make_patients"](tmp_path / "t.csv"), tmp_path / "run")
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("ε = ")
    assert [line.split()[0] for line in printed[1:3]] == ["ill", "well"]
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 60


@pytest.mark.slow
def test_default_settings_suit_a_table(tmp_path, capsys, monkeypatch):
    """What docs/tables.md says."""
    monkeypatch.chdir(tmp_path)
    for name, text in {"t.csv": patients(4000), "p.csv": patients(1000, seed=1), "t.toml": SCHEMA}.items():
        Path(name).write_text(text, encoding="utf-8")
    table = ["--data", "t.csv", "--target", "ill", "--schema", "t.toml", "--test", "p.csv"]
    with pytest.raises(SystemExit):
        main(
            [
                "train",
                *table,
                *["--epsilon", "2", "--delta", "1e-6", "--unit", "record", "--population", "4000", "--json"],
            ]
        )
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["test_accuracy"] > 0.96
