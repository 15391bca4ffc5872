"""`python -m reproduction trials` and `choose`: settings of studies, from equally many trials of every method."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from apportion.cli import options
from apportion.cli.output import print_error_stream
from reproduction.folders import short
from reproduction.trials import KeptTrials, Trial, missing_trials, read_designs, run_trials
from reproduction.trials.chosen import group_of, study_file, study_texts
from reproduction.trials.design import GROUPS
from reproduction.trials.kept import trials_file


def trials(
    design: Annotated[str, typer.Argument(help="`referee`, `papers`, or one file of papers/.")] = "referee",
    only: Annotated[str, typer.Option(help="Only trials whose 'on DATA: METHOD' contains this text.")] = "",
    processes: Annotated[
        int | None,
        typer.Option(help="Trials run at one time; changes no result.", show_default="one for each core"),
    ] = None,
    data_dir: options.DataDir = None,
) -> None:
    """Run the trials that are missing, on public data, and keep each as it ends. After an interruption the same command continues.

    Example: python -m reproduction trials --only "on mnist: adamw"
    """
    kept = KeptTrials.open(trials_file(group_of(design)))
    questions = [(one, judge, method) for one in read_designs(design) for judge in one.judges for method in one.methods]

    def wanted() -> list[Trial]:
        found = [trial for question in questions for trial in missing_trials(*question, kept)]
        return [trial for trial in found if only in f"on {trial.data}: {trial.method}"]

    def show(trial: Trial, entry: dict[str, Any]) -> None:
        score = entry.get("refused") or f"{entry['accuracy']}, {entry['seconds']} s"
        print_error_stream(f"{trial.data}: {trial.method} {trial.number} {trial.stage}: {score}")

    print_error_stream(f"{len(wanted())} trials are missing, before those that go on")
    workers = (os.cpu_count() or 1) if processes is None else processes
    run_trials(kept, wanted, processes=workers, data_dir=data_dir, show=show)


def choose() -> None:
    """Write the settings of the studies from the trials that are kept.

    Example: python -m reproduction choose
    """
    for group in GROUPS:
        for study, text in study_texts(group, KeptTrials.open(trials_file(group))).items():
            study_file(study).write_text(text, encoding="utf-8")
            typer.echo(short(study_file(study)))
