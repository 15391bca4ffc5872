"""`apportion audit`: try to disprove the guarantee of a model and a strategy, step by step or by attacking a run with canaries."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table

from apportion.cli import options
from apportion.cli.options import option
from apportion.cli.output import print_lines, screen, writable_folder
from apportion.compare.resolve import call_own, resolve
from apportion.errors import ApportionError, InvalidArgument
from apportion.execution import Execution

if TYPE_CHECKING:
    from apportion.audit.replay_report import ReplayReport
    from apportion.audit.verdict import AuditResult
    from apportion.compare.table_subject import TableChoice
    from apportion.planning import Plan
    from apportion.strategies.recipes import Recipe

QUICK: dict[str, Any] = {"canaries": 4_000, "steps": 8}
NO_PROOF = (
    "A passed audit is not a proof: it finds faults that this attack can see. The proof is in docs/accounting.md."
)
_SHOWN = 8  # findings printed; --json has all
_OWN = ("model", "clip", "noise", "update", "loss")

PrivateRecipe = Annotated[str, option("A private recipe, e.g. abadi or lin-decay.")]

app = typer.Typer(
    help="Try to disprove the guarantee: find privacy bugs in a model or a strategy.", no_args_is_help=True
)


class Subject(options.Columns):
    """What is audited."""

    model: options.Model
    data: options.Data
    set: options.Settings
    clip: str = option("Your own clip strategy, from module:function.")
    noise: str = option("Your own noise schedule, from module:function.")
    loss: str = option("Your own loss, from module:function.", "cross entropy")
    micro_batch: options.MicroBatch


class Replayed(Subject):
    """What is replayed."""

    update: str = option("Your own update strategy, from module:function.")
    recipe: str = option("A private recipe, e.g. abadi or lin-decay.", "abadi")
    plan: Path = option("A plan from `apportion plan --out`, instead of a recipe.")


class Attacked(Subject):
    """The run that is attacked."""

    epsilon: float = option("ε of the audited run.", "4")
    delta: float = option("δ of the audited run.", "1e-5")
    sample_rate: float = option("q of the audited run.", "0.5")
    steps: int = option("Steps of the audited run.", "20")
    canaries: int = option("At most the number of parameters; more are sharper.", "10000")


@app.command("replay")
@options.declared_in(Replayed)
def replay(
    steps: Annotated[int | None, option("Steps to replay, at least 2.", "4, or 12 for recipes that ask more")] = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
    **said: Any,
) -> None:
    """Replay a few steps on neighbouring data sets (a record added, removed, replaced by NaN or an outlier) with frozen noise.

    If anything but the noisy sums differs, or a sum moves further than was declared and charged, that is a privacy bug. Takes seconds,
    uses 13 records (of `digits` if no data is named) and changes nothing. Exits with 1 if something was found.

    Example: apportion audit replay --model my_models:build --data my_data:load --recipe lin-decay --set clip.power=0.3

    Example: apportion audit replay --clip my_strategies:build
    """
    from apportion.audit import replay as replay_audit

    plan, table, execution = _choose_plan(said), options.read_table_choice(said), _choose_execution(said)
    loss = _choose_loss(said, table)
    subject = resolve(said.get("data", "digits"), said.get("model"), data_dir, table)
    try:
        report = replay_audit(subject.build(), loss, subject.train, plan, steps=steps, execution=execution)
    except ApportionError:
        raise
    except Exception as error:
        reason = f"a step failed with {type(error).__name__}: {error}"
        own = next((said[name] for name in _OWN if name in said), None)
        raise InvalidArgument("/".join(_OWN), own, reason, "Check that it trains without the audit") from error
    if as_json:
        typer.echo(json.dumps(report.as_json()))
    else:
        _show_replay(report)
    if not report.ok:
        raise typer.Exit(1)


@app.command("run")
@options.declared_in(Attacked)
def run(
    quick: Annotated[bool, option("Seconds instead of tens of seconds, and less sharp.", name="--quick")] = False,
    recipe: PrivateRecipe = "abadi",
    data_dir: options.DataDir = None,
    out: Annotated[Path, option("The page with the plot.")] = Path("runs/audit.html"),
    as_json: options.Json = False,
    **said: Any,
) -> None:
    """Try to find out which of thousands of canary records were in the data; a library with too little noise gives them away.

    Without --data a network is attacked whose own gradients are the canaries'. With --data and --model a copy of your model is used;
    of the data only the shapes are: no private record is read. Exits with 1 if the claimed ε is refuted at 95 % confidence.

    Example: apportion audit run --quick --recipe lin-decay
    """
    from apportion.audit.statistical import audit
    from apportion.cli.audit_figure import write_audit

    plan = _choose_recipe(recipe, said)
    table = options.read_table_choice(said)
    given = {name: said[name] for name in Attacked.__annotations__ if name in said}
    if quick:
        given = (QUICK if "data" not in said else {"steps": QUICK["steps"]}) | given
    if "data" in said:
        found = resolve(said["data"], said.get("model"), data_dir, table)
        given |= {"model": found.build(), "loss_fn": _choose_loss(said, table), "data": found.train}
    elif "model" in said or "loss" in said or table is not None:
        raise InvalidArgument("data", None, "the shapes of the model's inputs are not known", "Pass --data too")
    writable_folder(out.parent)
    result = audit(plan=plan, execution=_choose_execution(said), progress=True, **given)
    write_audit(result, out)
    _show_run(result, recipe, out, as_json=as_json)
    if as_json:
        typer.echo(json.dumps(result.as_json() | {"recipe": recipe}))
    if result.exceeded:
        raise typer.Exit(1)


def _choose_plan(said: dict[str, Any]) -> Plan | Recipe:
    """The plan of a file, or the recipe that the options describe."""
    if "plan" not in said:
        return _choose_recipe(said.get("recipe", "abadi"), said)
    for name in ("recipe", "set", "clip", "noise", "update"):
        if name in said:
            raise InvalidArgument(name, said[name], f"{said['plan']} says it already", "Leave it out")
    return options.read_plan(said["plan"])


def _choose_recipe(name: str, said: dict[str, Any]) -> Recipe:
    """The private recipe of this name, with the settings and the person's own strategies."""
    from apportion.strategies.recipes import ROLES, named

    recipe = named(name).with_settings(options.parse_settings(said.get("set")))
    if not recipe.private:
        raise InvalidArgument("recipe", name, "it promises nothing that could be broken", "Choose a private recipe")
    own = {role: call_own(role, said[role]) for role in ROLES if role in said}
    if "clip" in own:
        own.setdefault("noise", None)  # such a clip may own both roles
    return replace(recipe, **own)


def _choose_loss(said: dict[str, Any], table: TableChoice | None) -> Any:
    from torch.nn.functional import cross_entropy

    if "loss" in said:
        return call_own("loss", said["loss"])
    return cross_entropy if table is None else table.loss()


def _choose_execution(said: dict[str, Any]) -> Execution:
    return Execution(said["micro_batch"]) if "micro_batch" in said else Execution()


def _show_replay(report: ReplayReport) -> None:
    console = screen()
    distance = Column("largest distance / allowed", justify="right")
    table = Table("neighbour", distance, "verdict", title="Replay audit")
    for measured in report.neighbours:
        verdict = "nothing found" if not measured.findings else f"[bold red]{measured.findings} found[/]"
        table.add_row(measured.neighbour, f"{measured.largest_ratio:.4f}", verdict)
    console.print(table)
    count = len(report.findings)
    print_lines(console, *(f"{finding.kind}: {finding}" for finding in report.findings[:_SHOWN]))
    if count > _SHOWN:
        print_lines(console, f"… and {count - _SHOWN} more; --json lists them all.")
    print_lines(console, *(f"note: {note}" for note in report.notes))
    seen = f"{report.steps} steps, {report.noise_calls} noise calls and {report.state_entries} public values compared"
    passed = f"No violation: {seen}. A passed audit is no proof."
    print_lines(console, passed if report.ok else f"The guarantee does not hold: {count} findings. {seen}.")


def _show_run(result: AuditResult, recipe: str, out: Path, *, as_json: bool) -> None:
    console = screen(as_json)
    numbers = [Column(heading, justify="right") for heading in (f"ε at δ = {result.delta:g}", "of the claim")]
    size = f"{result.canaries:,} canaries, {result.steps} steps with q = {result.sample_rate:g}"
    table = Table("", *numbers, "valid", title=f"{recipe}: {size}, {result.seconds:.0f} s")
    table.add_row("claimed (upper bound)", f"{result.claimed_epsilon:.3f}", "", "what the run charged")
    share = "exactly: q = 1" if result.gaussian_is_exact else "as a heuristic, because q < 1"
    for name, lower, valid in (
        ("lower bound, Gaussian view", result.gaussian_epsilon, share),
        ("lower bound, one run", result.one_run_epsilon, "without assumptions"),
    ):
        table.add_row(name, f"{lower:.3f}", f"{lower / result.claimed_epsilon:.0%}", valid)
    console.print(table)
    errors = result.errors
    print_lines(
        console,
        f"The test misses at most {errors.false_negative_bound:.1%} of the members at {errors.false_positive_bound:.1%} false "
        f"alarms; the claim allows no test to miss less than {result.least_false_negatives:.1%}.",
    )
    colour = "red" if result.exceeded else "green"
    console.print(f"[bold {colour}]{result.verdict}[/] at {result.confidence:.0%} confidence", soft_wrap=True)
    print_lines(console, *(f"  contradicts the claim: {one}" for one in result.contradictions))
    print_lines(console, NO_PROOF, f"Look at   {out}")
