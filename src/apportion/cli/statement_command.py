"""`apportion statement`: the privacy statement of a run as a document to hand in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from apportion.cli.options import option
from apportion.errors import InvalidArgument


def statement(
    run: Annotated[Path, typer.Argument(help="The folder of a private run.")],
    form: Annotated[
        Literal["html", "nist", "registry", "card"],
        option(
            "html: one page to print and sign. nist: JSON by the components of NIST SP 800-226. registry: JSON, a draft for the public "
            "registry of deployments. card: a model card.",
            name="--format",
        ),
    ] = "html",
    out: Annotated[Path | None, option("Where to write it (.html, .json or .md).", "standard output")] = None,
) -> None:
    """Write the privacy statement of a run as a page, as JSON for an evaluation or a registry, or as a model card.

    Everything in it comes from the run's folder public/. What a run cannot know, such as what the model is for, is a field that says who
    must fill it in. With groups each ε is listed; with a shared ledger, the limit of all runs as well.

    Example: apportion statement runs/default-digits --out statement.html

    Example: apportion statement runs/default-digits --format registry --out entry.json
    """
    from apportion.reporting.documents import SUFFIXES, format_statement, write_statement

    if out is None:
        typer.echo(format_statement(run, form), nl=False)
        return
    if out.suffix.lower() != (expected := SUFFIXES[form]):
        fix = f"End it in {expected}, or name another --format"
        raise InvalidArgument("out", str(out), f"the form {form} is written to a file that ends in {expected}", fix)
    typer.echo(write_statement(run, out, form))
