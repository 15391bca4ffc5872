import pytest
import torch

from apportion.cli.main import main
from reproduction.__main__ import app

torch.set_num_threads(1)  # the suite runs one process for each core


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
