"""`python -m reproduction trials` and `choose`: settings of the referee's study, from equally many trials of every method."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from apportion.cli import options
from apportion.cli.output import print_error_stream
from reproduction.folders import short
from reproduction.referee import KeptTrials, Trial, read_designs, run_trials
from reproduction.referee.chosen import STUDY, study_text


def trials(
    only: Annotated[str, typer.Option(help="Only trials whose 'on DATA: METHOD' contains this text.")] = "",
    data_dir: options.DataDir = None,
) -> None:
    """Run the trials that are missing, on public data, and keep each as it ends.

    Example: python -m reproduction trials --only "on mnist: adamw"
    """
    kept = KeptTrials.open()
    wanted = [
        trial for design in read_designs() for trial in design.trials() if only in f"on {trial.data}: {trial.method}"
    ]
    missing = [trial for trial in wanted if trial.key not in kept.found]
    print_error_stream(f"{len(wanted) - len(missing)} of {len(wanted)} trials are kept")

    def show(trial: Trial, entry: dict[str, Any]) -> None:
        score = entry.get("refused") or f"{entry['accuracy']}, {entry['seconds']} s"
        print_error_stream(f"{trial.data}: {trial.method} {trial.number}: {score}")

    run_trials(kept, missing, data_dir, show)


def choose() -> None:
    """Write the settings of the study `referee` from the trials that are kept.

    Example: python -m reproduction choose
    """
    STUDY.write_text(study_text(KeptTrials.open()), encoding="utf-8")
    typer.echo(short(STUDY))
