"""`apportion data`: which data sets there are, where they are, and how to get them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from apportion.cli import options
from apportion.cli.options import option
from apportion.cli.output import print_error_stream
from apportion.data import KNOWN, places, registry
from apportion.data.entry import Entry
from apportion.errors import InvalidArgument

if TYPE_CHECKING:
    from apportion.tables.drafting import Questions

app = typer.Typer(help="List, find and fetch data sets; draft the schema of a table.", no_args_is_help=True)

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


@app.command("schema")
def draft_schema(
    data: Annotated[Path, typer.Argument(help="The private table: a CSV or Parquet file.")],
    from_public: Annotated[
        Path | None, option("Draft from this table of the same form, which is declared public.")
    ] = None,
    private: Annotated[bool, option("Or ask the private table itself, with noise, for --epsilon.")] = False,
    epsilon: Annotated[float | None, option("ε, the privacy loss to spend on the draft.")] = None,
    delta: Annotated[float | None, option("δ, for the columns of --texts.")] = None,
    numbers: Annotated[
        list[str] | None,
        option(
            "A column of numbers, and a range that is wide enough in any case. Repeatable.", metavar="NAME:LOW:HIGH"
        ),
    ] = None,
    texts: Annotated[
        list[str] | None, option("A column of texts whose categories are to be found. Repeatable.", metavar="NAME")
    ] = None,
    categories: Annotated[
        list[str] | None, option("A column whose categories are known. Repeatable.", metavar="NAME=A,B,…")
    ] = None,
    decimal: Annotated[str, option('What stands before the fraction of a number: "." or ",".')] = ".",
    encoding: Annotated[str, option("Of CSV files: utf-8, latin-1, iso-8859-15, cp1250, cp1251 or cp1252.")] = "utf-8",
    ledger: Annotated[Path | None, option("The ledger of the data set; see `apportion ledger limit`.")] = None,
    out: Annotated[Path | None, option("A new file for the schema.", "standard output")] = None,
) -> None:
    """Draft the schema of a table, for `apportion train --schema`: from public data, or privately. Read it before you use it.

    Columns of the table that nothing was found out about are listed under ignore.

    Example: apportion data schema patients.csv --from-public sample.csv --out patients.toml

    Example: apportion data schema patients.csv --private --epsilon 0.1 --delta 1e-6 --numbers age:0:120 --texts sex --ledger p.sqlite
    """
    from apportion.tables.drafting import draft_from_public, draft_privately
    from apportion.tables.table_files import TableForm
    from apportion.training.checkpoint import replace_file

    asked = {"epsilon": epsilon, "delta": delta, "numbers": numbers, "texts": texts, "categories": categories}
    said = {name: value for name, value in (asked | {"ledger": ledger}).items() if value not in (None, [])}
    if private == (from_public is not None):
        reason = "a schema is drafted either from public data or privately"
        raise InvalidArgument("private", private, reason, "Pass --from-public sample.csv, or --private --epsilon 0.1")
    if not private and said:
        name = min(said)
        reason = "it is about a private draft, and a public one costs nothing"
        raise InvalidArgument(name, str(said[name]), reason, "Leave it out, or pass --private")
    if out is not None and out.exists():
        raise InvalidArgument("out", str(out), "there is a file already", "Choose another, or remove it")
    form = TableForm(decimal, encoding)
    remarks: tuple[str, ...] = ()
    if from_public is not None:
        note = f"drafted from {from_public.name}, declared public"
        schema, remarks = draft_from_public(data, from_public, form)
    else:
        if epsilon is None:
            raise InvalidArgument(
                "epsilon", None, "how much privacy may be lost is your decision", "Pass --epsilon 0.1"
            )
        questions = _questions(numbers or [], texts or [], categories or [])
        schema = draft_privately(data, questions, epsilon=epsilon, delta=delta, storage=ledger, form=form)
        price = f"epsilon = {epsilon:g}" + (f" and delta = {delta:g}" if texts else "")
        note = f"drafted privately, for {price}"
        print_error_stream(_describe_charge(price, ledger))
    lines = [f"# {note}; read it before you use it", *(f"# {' '.join(remark.split())}" for remark in remarks)]
    text = "\n".join([*lines, "", schema.to_toml()])
    if out is None:
        typer.echo(text, nl=False)
    else:
        replace_file(out, text.encode())


def _describe_charge(price: str, ledger: Path | None) -> str:
    """What a private draft cost, and who has written that down."""
    if ledger is not None:
        return f"The draft has spent {price}, charged to {ledger}."
    return (
        f"The draft has spent {price}, and nobody has recorded it: add it to what is spent on these records from now on. With "
        "--ledger the ledger of the data set keeps account of it (`apportion ledger limit`)."
    )


def _questions(numbers: list[str], texts: list[str], categories: list[str]) -> Questions:
    from apportion.tables.drafting import Questions

    ranges = {}
    for one in numbers:
        name, *ends = one.rsplit(":", 2)
        try:
            ranges[name] = (float(ends[0]), float(ends[1]))
        except (IndexError, ValueError):
            reason = "it is not of the form NAME:LOW:HIGH"
            raise InvalidArgument("numbers", one, reason, "Try --numbers age:0:120") from None
    known = {}
    for one in categories:
        name, equals, listed = one.partition("=")
        if not (name and equals and listed):
            reason = "it is not of the form NAME=A,B"
            raise InvalidArgument("categories", one, reason, "Try --categories sex=M,F")
        known[name] = listed.split(",")
    return Questions(ranges, texts, known)


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
