"""`apportion figures`: pictures and tables of kept results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from apportion.cli import options
from apportion.cli.output import print_error_stream, writable_folder


def figures(
    results: Annotated[Path, typer.Option(help="The folder in which studies and searches are kept.")] = Path("results"),
    out: Annotated[Path, typer.Option(help="The folder for the pictures.")] = Path("docs/figures"),
    pages: Annotated[
        Path | None,
        typer.Option(help="Fill the tables of results.md and choosing.md in this folder as well.", show_default=False),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Draw every figure whose results exist, as SVG; nothing is trained.

    The same results give the same bytes. Says which figures it leaves out, and the command that makes their results.

    Example: apportion figures --pages docs
    """
    from apportion.errors import InvalidArgument
    from reproduction.figures import Results, draw_all, fill_pages

    if results.exists() and not results.is_dir():
        raise InvalidArgument("results", str(results), "it is not a folder", "Pass the folder that holds the files")
    if pages is not None and not results.is_dir():
        raise InvalidArgument(
            "results", str(results), "there is no such folder, and the tables would be emptied", "Run a study first"
        )
    found = Results.read(results)
    for name in found.strange:
        print_error_stream(f"{results / name}: neither a study nor a search, so it is not looked at")
    filled = [] if pages is None else fill_pages(found, pages, out)
    drawn, left_out = draw_all(found, writable_folder(out))
    if as_json:
        missing = {figure.name: figure.command for figure in left_out}
        content = {"drawn": list(map(str, drawn)), "left_out": missing, "pages": list(map(str, filled))}
        typer.echo(json.dumps(content, ensure_ascii=False))
        return
    for path in (*drawn, *filled):
        typer.echo(path)
    for figure in left_out:
        print_error_stream(f"{figure.name} left out, it needs {figure.command}")
