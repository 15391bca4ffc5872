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
    memory_limit: Annotated[
        str | None,
        typer.Option(help="Memory for training, e.g. 2GB: shows how many records fit at one time.", show_default=False),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Explain layer by layer what cannot be trained privately and what to use instead. Exits with 1 if something cannot.

    With data (built-in models use `digits`) it also says which engine computes the per-record gradients, and by which rule, what
    memory that takes, and about what it costs.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from apportion.compare.resolve import load_example, load_model
    from apportion.execution import format_bytes
    from apportion.models.check import check as check_model
    from apportion.models.fix import fix
    from apportion.models.inspection import inspect

    subject = load_model(model, data, data_dir)
    found = check_model(subject)
    example = load_example(model, data, data_dir) if found.ok else None
    engine = None if example is None else inspect(subject, example[0], example[1], memory_limit)
    changes = fix(subject).changes if repair else ()
    if as_json:
        content = {"ok": found.ok, "parameters": found.parameters, "layers": [asdict(layer) for layer in found.layers]}
        typer.echo(
            json.dumps(content | {"changes": list(changes), "engine": None if engine is None else asdict(engine)})
        )
    else:
        console = Console(highlight=False)
        table = Table("layer", "kind", "parameters", "private training", "per-record norms")
        for layer in found.layers:
            verdict = "yes" if layer.problem is None else f"no: {layer.problem} → {layer.remedy}"
            prefix = "" if layer.name == "(model)" else f"{layer.name}."
            rules = {} if engine is None else engine.kernels
            own = dict.fromkeys(rule for name, rule in rules.items() if name.startswith(prefix))
            table.add_row(*map(escape, (layer.name, layer.kind, f"{layer.parameters:,}", verdict, ", ".join(own))))
        console.print(table)
        for change in changes:
            console.print(f"fix: {change}", markup=False)
        if found.ok:
            console.print(f"All {found.parameters:,} parameters can be trained privately.")
            if engine is not None:
                console.print(f"Engine: {engine.mode}.")
                for reason in engine.reasons:
                    console.print(f"Slower than it could be: {reason}.", markup=False)
                for path in engine.fallbacks:
                    console.print(f"{path} has no rule of its own and runs record by record.", markup=False)
                console.print(
                    f"Memory, predicted: {format_bytes(engine.memory)} with {engine.physical_batch:,} records at one time, "
                    f"{format_bytes(engine.memory_per_record)} for each further record; the data comes on top."
                )
                console.print(
                    f"Time, a quick estimate: a private gradient takes {engine.relative_cost:.1f} times an ordinary one."
                )
        elif not repair:
            console.print("`apportion check --fix` shows what apportion.fix(model) would change.")
    if not found.ok:
        raise typer.Exit(1)
