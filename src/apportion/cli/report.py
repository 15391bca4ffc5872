"""`apportion report`: the page of results that exist already."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    results: Annotated[Path, typer.Argument(help="results.json, or a folder that holds it.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write the page.", show_default="report.html beside it")
    ] = None,
) -> None:
    """Write one self-contained HTML page with tables, plots and the privacy statement."""
    from apportion.lab.report import read_results, write_report

    content = read_results(results)
    folder = results if results.is_dir() else results.parent
    typer.echo(write_report(content, out or folder / "report.html"))
