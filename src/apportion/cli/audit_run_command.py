"""`apportion audit run`: attack a private run with canaries, and compare what the attack learns with the claimed ε."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apportion.cli import options

if TYPE_CHECKING:
    from apportion.audit.verdict import AuditResult

QUICK: dict[str, Any] = {"canaries": 4_000, "steps": 8}
NO_PROOF = (
    "A passed audit is not a proof: it finds faults that this attack can see. The proof is in docs/accounting.md."
)


def run(
    quick: Annotated[bool, typer.Option("--quick", help="Seconds instead of tens of seconds, and less sharp.")] = False,
    model: options.Model = None,
    data: options.Data = None,
    recipe: Annotated[str, typer.Option(help="A private recipe, e.g. abadi or lin-decay.")] = "abadi",
    settings: options.Settings = None,
    clip: Annotated[
        str | None, typer.Option(help="Your own clip strategy, from module:function.", show_default=False)
    ] = None,
    noise: Annotated[
        str | None, typer.Option(help="Your own noise schedule, from module:function.", show_default=False)
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="The loss of your own model, from module:function.", show_default="cross entropy")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε of the audited run.", show_default="4")] = None,
    delta: Annotated[float | None, typer.Option(help="δ of the audited run.", show_default="1e-5")] = None,
    sample_rate: Annotated[float | None, typer.Option(help="q of the audited run.", show_default="0.5")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of the audited run.", show_default="20")] = None,
    canaries: Annotated[
        int | None, typer.Option(help="At most the number of parameters; more are sharper.", show_default="10000")
    ] = None,
    micro_batch: options.MicroBatch = None,
    data_dir: options.DataDir = None,
    out: Annotated[Path, typer.Option(help="The page with the plot.")] = Path("runs/audit.html"),
    as_json: options.Json = False,
) -> None:
    """Try to find out which of thousands of canary records were in the data; a library with too little noise gives them away.

    Without --data a network is attacked whose own gradients are the canaries'. With --data and --model a copy of your model is used;
    of the data only the shapes are: no private record is read. Exits with 1 if the claimed ε is refuted at 95 % confidence.

    Example: apportion audit run --quick --recipe lin-decay
    """
    from torch.nn.functional import cross_entropy

    from apportion.audit.statistical import audit
    from apportion.cli.audit_figure import write_audit
    from apportion.cli.output import writable_folder
    from apportion.compare.resolve import call_own, resolve
    from apportion.errors import InvalidArgument
    from apportion.execution import Execution
    from apportion.strategies.recipes import named

    chosen = named(recipe).with_settings(options.parse_settings(settings))
    if not chosen.private:
        raise InvalidArgument("recipe", recipe, "it claims nothing that could be audited", "Choose a private recipe")
    subject: dict[str, Any] = {}
    if data is not None:
        found = resolve(data, model, data_dir)
        subject = {
            "model": found.build(),
            "loss_fn": cross_entropy if loss is None else call_own("loss", loss),
            "data": found.train,
        }
    elif model is not None or loss is not None:
        raise InvalidArgument("data", None, "the shapes of the model's inputs are not known", "Pass --data too")
    given = options.given(epsilon=epsilon, delta=delta, sample_rate=sample_rate, steps=steps, canaries=canaries)
    if quick:
        given = (QUICK if data is None else {"steps": QUICK["steps"]}) | given
    writable_folder(out.parent)
    result = audit(
        **subject,
        plan=options.with_own_strategies(chosen, clip=clip, noise=noise),
        execution=None if micro_batch is None else Execution(micro_batch=micro_batch),
        progress=True,
        **given,
    )
    write_audit(result, out)
    _show(result, recipe, out, as_json=as_json)
    if as_json:
        typer.echo(json.dumps(result.as_json() | {"recipe": recipe}))
    if result.exceeded:
        raise typer.Exit(1)


def _show(result: AuditResult, recipe: str, out: Path, *, as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(stderr=as_json, highlight=False)
    table = Table(
        title=f"{recipe}: {result.canaries:,} canaries, {result.steps} steps with q = {result.sample_rate:g}, "
        f"{result.seconds:.0f} s"
    )
    for heading in ("", f"ε at δ = {result.delta:g}", "of the claim", "valid"):
        table.add_column(heading, justify="left" if heading in ("", "valid") else "right")
    table.add_row("claimed (upper bound)", f"{result.claimed_epsilon:.3f}", "", "what the run charged")
    share = "exactly: q = 1" if result.gaussian_is_exact else "as a heuristic, because q < 1"
    for name, lower, valid in (
        ("lower bound, Gaussian view", result.gaussian_epsilon, share),
        ("lower bound, one run", result.one_run_epsilon, "without assumptions"),
    ):
        table.add_row(name, f"{lower:.3f}", f"{lower / result.claimed_epsilon:.0%}", valid)
    console.print(table)
    errors = result.errors
    console.print(
        f"The test misses at most {errors.false_negative_bound:.1%} of the members at {errors.false_positive_bound:.1%} false "
        f"alarms; the claim allows no test to miss less than {result.least_false_negatives:.1%}.",
        soft_wrap=True,
    )
    colour = "red" if result.exceeded else "green"
    console.print(f"[bold {colour}]{result.verdict}[/] at {result.confidence:.0%} confidence", soft_wrap=True)
    for contradiction in result.contradictions:
        console.print(f"  contradicts the claim: {contradiction}", soft_wrap=True, markup=False)
    console.print(NO_PROOF, soft_wrap=True)
    console.print(f"Look at   {out}", soft_wrap=True, markup=False)
