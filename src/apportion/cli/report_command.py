"""`apportion report`: the page of results that exist already."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    results: Annotated[
        Path, typer.Argument(help="results.json of a comparison, a folder that holds it, or the file of a table.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where to write the page.",
            show_default="report.html beside results.json; table.html beside table.json",
        ),
    ] = None,
) -> None:
    """Write one self-contained HTML page with tables, plots and the privacy statement."""
    from apportion.report import read_results, write_report

    content = read_results(results)
    if results.is_dir():
        place = results / "report.html"
    else:
        place = results.with_name("report.html") if results.name == "results.json" else results.with_suffix(".html")
    typer.echo(write_report(content, out or place))
