import sys
from pathlib import Path

import pytest
import torch

from apportion.cli.main import main
from reproduction.__main__ import app

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from proofs import proofs_remembered

torch.set_num_threads(1)  # the suite runs one process for each core


@pytest.fixture(autouse=True)
def remembered_proofs():
    """Studies train the same networks again and again."""
    with proofs_remembered():
        yield


@pytest.fixture
def reproduction(capsys, monkeypatch, tmp_path):
    """Run a command in an empty folder; returns exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main(list(arguments), app)
        printed = capsys.readouterr()
        return stop.value.code or 0, printed.out, printed.err

    return run
