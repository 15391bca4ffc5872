"""`apportion check`: can this model be trained privately, and if not, why?"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from apportion.cli import options


def check(
    model: Annotated[str, typer.Option(help="linear, mlp, cnn, lstm, embedding, or your own module:function.")],
    data: options.Data = None,
    data_dir: options.DataDir = None,
    repair: Annotated[bool, typer.Option("--fix", help="Show what `apportion.fix(model)` would change.")] = False,
    as_json: options.Json = False,
) -> None:
    """Explain layer by layer what cannot be trained privately and what to use instead. Exits with 1 if something cannot."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from apportion.curator.compatibility import check as check_model
    from apportion.curator.repair import fix
    from apportion.lab.resolve import load_model

    subject = load_model(model, data, data_dir)
    found = check_model(subject)
    changes = fix(subject).changes if repair else ()
    if as_json:
        content = {"ok": found.ok, "parameters": found.parameters, "layers": [asdict(layer) for layer in found.layers]}
        typer.echo(json.dumps(content | {"changes": list(changes)}))
    else:
        console = Console(highlight=False)
        table = Table("layer", "kind", "parameters", "private training")
        for layer in found.layers:
            verdict = "yes" if layer.problem is None else f"no: {layer.problem} → {layer.remedy}"
            table.add_row(*map(escape, (layer.name, layer.kind, f"{layer.parameters:,}", verdict)))
        console.print(table)
        for change in changes:
            console.print(f"fix: {change}", markup=False)
        if found.ok:
            console.print(f"All {found.parameters:,} parameters can be trained privately.")
        elif not repair:
            console.print("`apportion check --fix` shows what apportion.fix(model) would change.")
    if not found.ok:
        raise typer.Exit(1)
