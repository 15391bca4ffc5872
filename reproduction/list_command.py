"""`python -m reproduction list`: what there is to run, and what of it is kept."""

from __future__ import annotations

import json

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from apportion.cli import options
from reproduction.folders import RESULTS, ResultsFolder
from reproduction.study import StudyResults, open_study, study_names


def list_studies(results: ResultsFolder = RESULTS, as_json: options.Json = False) -> None:
    """All studies, with the number of cells that are kept, missing, or waiting for something that does not exist yet."""
    found = []
    for name in study_names():
        study = open_study(name)
        missing, cells = len(StudyResults.open(study, results / f"{name}.json").missing), len(study.cells)
        waiting = sum(len(one.later) for one in study.experiments)
        found.append(
            {"name": name, "title": study.title, "kept": cells - missing, "missing": missing, "waiting": waiting}
        )
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
        return
    table = Table()
    for heading in ("name", "title", "kept", "missing", "waiting"):
        table.add_column(heading, justify="left" if heading in ("name", "title") else "right")
    for row in found:
        table.add_row(*(escape(str(value)) for value in row.values()))
    Console(highlight=False).print(table)
