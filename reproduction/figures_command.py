"""`python -m reproduction figures`: pictures and tables of kept results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from apportion.cli import options
from apportion.cli.output import print_error_stream, writable_folder
from apportion.errors import InvalidArgument
from reproduction.figures import Results, draw_all, fill_pages
from reproduction.figures.default_table import format_table
from reproduction.folders import PICTURES, RESULTS, TABLE, ResultsFolder, short


def figures(
    results: ResultsFolder = RESULTS,
    out: Annotated[
        Path, typer.Option(help="The folder for the pictures.", show_default="reproduction/pictures")
    ] = PICTURES,
    pages: Annotated[
        bool,
        typer.Option(
            "--pages",
            help="Fill the tables of the pages in reproduction/ and docs/, and of `apportion advise`, as well.",
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Draw every figure whose results exist, as SVG; nothing is trained.

    The same results give the same bytes. Says which figures it leaves out, and the command that makes their results.

    Example: python -m reproduction figures --pages
    """
    if not results.is_dir():
        raise InvalidArgument("results", str(results), "it is not a folder", "Pass the folder that holds the files")
    found = Results.read(results)
    for name in found.unknown:
        print_error_stream(f"{results / name}: neither a study nor a search, so it is not looked at")
    filled = fill_pages(found) if pages else []
    if pages:
        TABLE.write_text(format_table(found), encoding="utf-8")
        filled.append(TABLE)
    drawn, left_out = draw_all(found, writable_folder(out))
    if as_json:
        missing = {figure.name: figure.command for figure in left_out}
        content = {"drawn": list(map(short, drawn)), "left_out": missing, "pages": list(map(short, filled))}
        typer.echo(json.dumps(content, ensure_ascii=False))
        return
    for path in (*drawn, *filled):
        typer.echo(short(path))
    for figure in left_out:
        print_error_stream(f"{figure.name} left out, it needs {figure.command}")
