"""`apportion audit`: try to disprove the guarantee of a model and a strategy."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from apportion.cli import options
from apportion.cli.audit_run_command import run

if TYPE_CHECKING:
    from apportion.audit.replay_report import ReplayReport

_SHOWN = 8  # findings printed; --json has all

app = typer.Typer(
    help="Try to disprove the guarantee: find privacy bugs in a model or a strategy.", no_args_is_help=True
)


def replay(
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
    update: Annotated[
        str | None, typer.Option(help="Your own update strategy, from module:function.", show_default=False)
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="Your own loss, from module:function.", show_default="cross entropy")
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps to replay, at least 2.")] = 4,
    micro_batch: options.MicroBatch = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Replay a few steps on neighbouring data sets (a record added, removed, replaced by NaN or an outlier) with frozen noise.

    If anything but the noisy sums differs, or a sum moves further than was declared and charged, that is a privacy bug. Takes seconds,
    uses 13 records (of `digits` if no data is named) and changes nothing. Exits with 1 if something was found.

    Example: apportion audit replay --model my_models:build --data my_data:load --recipe lin-decay --set clip.power=0.3

    Example: apportion audit replay --clip my_strategies:build
    """
    from torch.nn.functional import cross_entropy

    from apportion.audit import replay as replay_audit
    from apportion.compare.resolve import call_own, resolve
    from apportion.errors import ApportionError, InvalidArgument
    from apportion.execution import Execution
    from apportion.strategies.recipes import named

    chosen = named(recipe).with_settings(options.parse_settings(settings))
    if not chosen.private:
        raise InvalidArgument("recipe", recipe, "it promises nothing that could be broken", "Choose a private recipe")
    subject = resolve(data or "digits", model, data_dir)
    chosen = options.with_own_strategies(chosen, clip=clip, noise=noise, update=update)
    loss_fn = cross_entropy if loss is None else call_own("loss", loss)
    execution = Execution() if micro_batch is None else Execution(micro_batch)
    try:
        report = replay_audit(subject.build(), loss_fn, subject.train, chosen, steps=steps, execution=execution)
    except ApportionError:
        raise
    except Exception as error:
        raise InvalidArgument(
            "model/clip/noise/update/loss",
            model or clip or noise or update or loss,
            f"a step failed with {type(error).__name__}: {error}",
            "Check that it trains without the audit",
        ) from error
    if as_json:
        typer.echo(json.dumps(report.as_json()))
    else:
        _show(report)
    if not report.ok:
        raise typer.Exit(1)


def _show(report: ReplayReport) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table("neighbour", title="Replay audit")
    table.add_column("largest distance / allowed", justify="right")
    table.add_column("verdict")
    for measured in report.neighbours:
        verdict = "nothing found" if not measured.findings else f"[bold red]{measured.findings} found[/]"
        table.add_row(measured.neighbour, f"{measured.largest_ratio:.4f}", verdict)
    console.print(table)
    for finding in report.findings[:_SHOWN]:
        console.print(f"{finding.kind}: {finding}", markup=False, soft_wrap=True)
    if len(report.findings) > _SHOWN:
        console.print(f"… and {len(report.findings) - _SHOWN} more; --json lists them all.")
    for note in report.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    compared = (
        f"{report.steps} steps, {report.noise_calls} noise calls and {report.state_entries} public values compared"
    )
    if report.ok:
        console.print(f"No violation: {compared}. A passed audit is no proof.", soft_wrap=True)
    else:
        console.print(f"The guarantee does not hold: {len(report.findings)} findings. {compared}.", soft_wrap=True)


app.command("replay")(replay)
app.command("run")(run)
