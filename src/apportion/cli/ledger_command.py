"""`apportion ledger`: declare the limit of a data set, look at what was spent of it, check and export it."""

from __future__ import annotations

import csv
import json
import sys
from contextlib import closing
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from apportion.budget import UNITS, Budget
from apportion.cli.options import option
from apportion.cli.output import print_lines, screen
from apportion.errors import InvalidArgument

if TYPE_CHECKING:
    from apportion.accounting.ledger import AdmittedRun, Ledger

app = typer.Typer(help="Declare, show, check and export the privacy ledger of a data set.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="PATH", help="The ledger, a SQLite file.")]


@app.command("limit")
def limit(
    path: File,
    name: Annotated[str, option("The name of the data set.")],
    epsilon: Annotated[float, option("ε of all runs together.")],
    delta: Annotated[float, option("δ of all runs together, below 1/population.")],
    unit: Annotated[Literal["record", "user"], option("Whom the guarantee protects.")],
    rule: Annotated[
        Literal["gaussian", "sum"],
        option(
            "How the costs of runs add up. gaussian: μ², for several runs of many steps. sum: ε and δ, for one or two runs of few steps, "
            "searches and filters. `apportion advise --runs` compares them."
        ),
    ] = "gaussian",
) -> None:
    """Make a new ledger and declare, for good, what all runs on a data set may spend together.

    A run that names it (`--ledger`) is admitted only if the limit covers its whole plan together with all earlier ones.

    Example: apportion ledger limit patients.sqlite --name patients --epsilon 3 --delta 1e-6 --unit record
    """
    from apportion.accounting.ledger import Ledger
    from apportion.accounting.run_filter import RULES

    budget = Budget(epsilon=epsilon, delta=delta, unit=UNITS[unit]())
    ledger = Ledger.create(path, name=name, rule=RULES[rule](budget))
    typer.echo(f"{path}: all runs on {name!r} together may spend ε = {epsilon:g} at δ = {delta:g} ({unit}).")
    typer.echo(
        f"Use it with storage=apportion.Storage(ledger={str(path)!r}), or with `apportion train --ledger {path}`. "
        f"First row: {ledger.head()}"
    )
    ledger.close()


@app.command("show")
def show(path: File, as_json: Annotated[bool, option("Print JSON for programs.", name="--json")] = False) -> None:
    """Show the runs, what they were charged, and what is left of the limit.

    It also says when the other rule would have taken less.

    Example: apportion ledger show patients.sqlite
    """
    with _opened(path) as ledger:
        facts = _facts(ledger)
    if facts["damage"]:
        print(f"warning: {path} is damaged, {facts['damage']}. It can be read, but not charged.", file=sys.stderr)
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False))
        return
    console = screen()
    table = Table("run", "admitted (UTC)", "steps planned", "steps charged", "cost")
    for run in facts["runs"]:
        shown = run | ({"planned": "a search", "charged": "as a whole"} if run["search"] else {})
        table.add_row(*(str(shown[key]) for key in ("run", "admitted", "planned", "charged", "cost")))
    console.print(table)
    lines = [
        "steps planned: all that the run may take, with spare ones for crashes. steps charged: those that were paid for so far."
    ]
    lines += [
        f"run {run['run']}, by group: "
        + ", ".join(f"{name} ε = {epsilon:.4g}" for name, epsilon in run["groups"].items())
        for run in facts["runs"]
        if "groups" in run
    ]
    if facts["rule"]:
        lines += [
            f"cost: what the whole plan takes of the limit, whether the run ends or not. Rule {facts['rule']}: {facts['adds']}.",
            f"{facts['name']}: limit ε = {facts['epsilon']:g} at δ = {facts['delta']:g} ({facts['unit']}) for all runs together, of which "
            f"ε = {facts['epsilon_admitted']:.4g} is taken, and there is room for {facts['room']}.",
        ]
        lines += [facts["advice"]] if facts["advice"] else []
    else:
        lines += ["The ledger of a single run; it has no limit over runs."]
    print_lines(console, *lines, f"last row: {facts['head']}")


@app.command("verify")
def verify(
    path: File,
    head: Annotated[str | None, option("A hash of a last row that was noted earlier.")] = None,
) -> None:
    """Check every row against its hash. Exits with 1 and names the first bad row if there is one.

    A file that was rewritten, cut off or replaced by an older copy is found by --head: the last row's hash, as `show` and every privacy
    statement have it.

    Example: apportion ledger verify patients.sqlite --head HASH
    """
    with _opened(path) as ledger:
        damage, last = ledger.verify(head), ledger.head()
    if damage:
        typer.echo(f"{path} is damaged: {damage}")
        raise typer.Exit(1)
    typer.echo(f"{path}: every row is as it was written. Last row: {last}")


@app.command("export")
def export(
    path: File,
    as_csv: Annotated[bool, option("Comma-separated values (default).", name="--csv")] = False,
    as_json: Annotated[bool, option("A JSON list.", name="--json")] = False,
) -> None:
    """Print all rows with their hashes. `content` is the text that the hash covers."""
    from apportion.accounting.chain import Row

    if as_csv and as_json:
        raise InvalidArgument("json", True, "--csv was given too", "Choose one format")
    with _opened(path) as ledger:
        rows = [asdict(row) for row in ledger.rows()]
    if as_json:
        typer.echo(json.dumps(rows, indent=1, ensure_ascii=False, default=repr))
        return
    writer = csv.DictWriter(sys.stdout, [field.name for field in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _opened(path: Path) -> closing[Ledger]:
    from apportion.accounting.ledger import Ledger

    return closing(Ledger.open(path))


def _group_prices(run: AdmittedRun, delta: float) -> dict[str, float]:
    """ε of a run's whole plan for each group of people, at the limit's δ."""
    from apportion.accounting.accountant import PrivacyLossAccountant
    from apportion.accounting.rules import events_of_group

    price = PrivacyLossAccountant().epsilon
    return {name: price(events_of_group(run.plan, number), delta) for number, name in enumerate(run.groups)}


def _facts(ledger: Ledger) -> dict[str, Any]:
    """What is shown, as data."""
    from apportion.accounting.selection import TrialOfSearch
    from apportion.accounting.sharing import advise_rule

    rule, damage = ledger.rule, ledger.verify()
    runs = [
        {
            "run": run.number,
            "admitted": run.admitted,
            "planned": len(run.plan),
            "search": (run.terms or "").startswith(TrialOfSearch.name),
            "charged": sum(ledger.counts(run.number).values()),
            "cost": rule.describe(run.cost) if rule else "",
            "amounts": asdict(run.cost),
            **({"groups": _group_prices(run, rule.limit.delta)} if rule and run.groups else {}),
        }
        for run in ledger.runs()
    ]
    return {
        "name": ledger.name,
        "rule": rule.name if rule else None,
        "adds": rule.adds if rule else None,
        "epsilon": rule.limit.epsilon if rule else None,
        "delta": rule.limit.delta if rule else None,
        "unit": rule.limit.unit.name if rule else None,
        "runs": runs,
        "spent": rule.describe(ledger.spent()) if rule else None,
        "left": rule.describe(ledger.left()) if rule else None,
        "room": rule.room(ledger.left()) if rule else None,
        "epsilon_admitted": rule.epsilon(ledger.spent()) if rule else None,
        "advice": advise_rule(ledger),
        "head": ledger.head(),
        "damage": str(damage) if damage else None,
    }
