import pytest

from apportion.cli.main import main


@pytest.fixture
def apportion(capsys, monkeypatch, tmp_path):
    """Run a command in an empty folder; returns exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
        printed = capsys.readouterr()
        return stop.value.code or 0, printed.out, printed.err

    return run
