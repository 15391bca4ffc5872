"""`apportion report`: the page of runs and results that exist already."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apportion.cli.options import option


def report(
    results: Annotated[
        list[Path],
        typer.Argument(
            help="One or several: results.json, a folder that holds it, the file of a table, the folder of a run."
        ),
    ],
    out: Annotated[
        Path | None,
        option(
            "Where to write the page (.html), or the table of results alone (.csv, .tex).",
            "report.html beside results.json; table.html beside table.json; of several, report.html here",
        ),
    ] = None,
) -> None:
    """Write one self-contained HTML page with tables, plots and the privacy statement.

    Example: apportion report runs/abadi-digits runs/default-digits --out both.html

    Example: apportion report runs/compare-digits --out table.tex
    """
    from apportion.reporting import report as write
    from apportion.reporting.export import require_suffix
    from apportion.reporting.write import SUFFIXES

    if out is not None and not out.is_dir():
        require_suffix("out", out, SUFFIXES)
    first = results[0]
    if len(results) > 1:
        place = Path("report.html")
    elif first.is_dir():
        place = first / "report.html"
    else:
        place = first.with_name("report.html") if first.name == "results.json" else first.with_suffix(".html")
    typer.echo(write(results, out or place))
