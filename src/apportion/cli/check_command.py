"""`apportion check`: can this model be trained privately, and if not, why?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from apportion.cli import options
from apportion.cli.options import option
from apportion.cli.output import print_lines, screen
from apportion.compare.resolve import load_example, load_model
from apportion.execution import format_bytes

if TYPE_CHECKING:
    from apportion.models.check import ModelCheck
    from apportion.models.inspection import Inspection


@options.declared_in(options.Columns)
def check(
    model: Annotated[
        str, option("linear, additive, mlp, spread-mlp, cnn, lstm, embedding, or your own module:function.")
    ],
    data: options.Data = None,
    data_dir: options.DataDir = None,
    repair: Annotated[bool, option("Show what `apportion.fix(model)` would change.", name="--fix")] = False,
    memory_limit: Annotated[
        str | None, option("Memory for training, e.g. 2GB: shows how many records fit at one time.")
    ] = None,
    as_json: options.Json = False,
    **said: Any,
) -> None:
    """Explain layer by layer what cannot be trained privately and what to use instead. Exits with 1 if something cannot.

    With data (built-in models use `digits`) it also says which engine computes the per-record gradients, and by which rule, what
    memory that takes, and about what it costs.

    Example: apportion check --model my_models:build --fix

    Example: apportion check --model cnn --data mnist --memory-limit 2GB
    """
    from apportion.models.check import check as check_model
    from apportion.models.fix import fix
    from apportion.models.inspection import inspect

    table = options.read_table_choice(said | ({} if data is None else {"data": data}))
    subject = load_model(model, data, data_dir, table)
    found = check_model(subject)
    example = load_example(model, data, data_dir, table) if found.ok else None
    engine = None if example is None else inspect(subject, example[0], example[1], memory_limit)
    changes = fix(subject).changes if repair else ()
    if as_json:
        content = {"ok": found.ok, "parameters": found.parameters, "layers": [asdict(layer) for layer in found.layers]}
        content |= {"changes": list(changes), "engine": None if engine is None else asdict(engine)}
        typer.echo(json.dumps(content))
    else:
        _show(found, engine, changes)
        if not (found.ok or repair):
            typer.echo("`apportion check --fix` shows what apportion.fix(model) would change.")
    if not found.ok:
        raise typer.Exit(1)


def _show(found: ModelCheck, engine: Inspection | None, changes: Sequence[str]) -> None:
    console = screen()
    table = Table("layer", "kind", "parameters", "private training", "per-record norms")
    for layer in found.layers:
        verdict = "yes" if layer.problem is None else f"no: {layer.problem} → {layer.remedy}"
        prefix = "" if layer.name == "(model)" else f"{layer.name}."
        rules = {} if engine is None else engine.kernels
        own = dict.fromkeys(rule for name, rule in rules.items() if name.startswith(prefix))
        table.add_row(*map(escape, (layer.name, layer.kind, f"{layer.parameters:,}", verdict, ", ".join(own))))
    console.print(table)
    print_lines(console, *(f"fix: {change}" for change in changes))
    if found.ok:
        print_lines(console, f"All {found.parameters:,} parameters can be trained privately.")
    if engine is not None:
        print_lines(console, *_describe(engine))


def _describe(engine: Inspection) -> list[str]:
    return [
        f"Engine: {engine.mode}.",
        *(f"Slower than it could be: {reason}." for reason in engine.reasons),
        *(f"{path} has no rule of its own and runs record by record." for path in engine.fallbacks),
        f"Memory, predicted: {format_bytes(engine.memory)} with {engine.physical_batch:,} records at one time, "
        f"{format_bytes(engine.memory_per_record)} for each further record; the data comes on top.",
        f"Time, a quick estimate: a private gradient takes {engine.relative_cost:.1f} times an ordinary one.",
    ]
