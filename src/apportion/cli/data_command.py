"""`apportion data`: which data sets there are, where they are, and how to get them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from apportion.cli import options
from apportion.cli.options import option
from apportion.data import KNOWN, places, registry
from apportion.data.entry import Entry

app = typer.Typer(help="List, find and fetch data sets.", no_args_is_help=True)

Target = Annotated[Path | None, option("Where to write it.", "$APPORTION_DATA, or the user's cache folder")]
Name = Annotated[str, typer.Argument(help="A data set, e.g. mnist; `apportion data list` has them all.")]


@app.command("list")
def list_data(
    data_dir: options.DataDir = None,
    as_json: Annotated[bool, option("Print JSON for programs.", name="--json")] = False,
) -> None:
    """Show the known data sets and where each one is on this machine."""
    rows = [_row(entry, data_dir) for entry in KNOWN.values()]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table("name", "records", "classes", "kind", "found in, or how to get it")
    for row in rows:
        place = escape(str(row["found"] or row["get"]))
        table.add_row(str(row["name"]), f"{row['population']:,}", str(row["classes"]), str(row["kind"]), place)
    table.add_row("folder:PATH", "yours", "yours", "image", "images in PATH/train/<class>/ and PATH/test/<class>/")
    Console().print(table)


@app.command("fetch")
def fetch_data(name: Name, data_dir: Target = None) -> None:
    """Download a data set and check it; prints the folder it is in."""
    from apportion.data.fetch import fetch

    typer.echo(fetch(name, data_dir))


@app.command("where")
def where(name: Name, data_dir: options.DataDir = None) -> None:
    """Print the folder that holds the files of a data set."""
    entry = registry.entry_of(name)
    row = _row(entry, data_dir)
    if not row["found"]:
        raise places.not_found(entry, data_dir)
    typer.echo(row["found"])


def _row(entry: Entry, data_dir: Path | None) -> dict[str, str | int]:
    """What is shown of one data set."""
    folder = None if entry.built_in else places.find(entry, data_dir)
    return {
        "name": entry.name,
        "title": entry.title,
        "population": entry.population,
        "classes": entry.classes,
        "kind": entry.kind,
        "licence": entry.licence,
        "found": "part of scikit-learn" if entry.built_in else str(folder or ""),
        "get": "" if entry.built_in else f"apportion data fetch {entry.name}",
    }
