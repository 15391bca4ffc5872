"""`apportion account`: what does a schedule cost, and is a run's stated ε true?"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from apportion import validate
from apportion.accounting.schedules import read_schedule
from apportion.cli import options
from apportion.cli.options import option
from apportion.cli.output import RESERVED, TAKEN, print_error_stream, print_lines, screen
from apportion.errors import InvalidArgument

if TYPE_CHECKING:
    from apportion.accounting.comparisons import Comparison
    from apportion.event import Event

STATEMENT, LEDGER = Path("public", "privacy.json"), Path("secret", "ledger.sqlite")
SCORE_LEDGER = Path("secret", "holdout.sqlite")


def account(
    path: Annotated[
        Path,
        typer.Argument(
            help="A schedule (.csv with sample_rate, noise_multiplier, count; .json; Opacus's history), or the folder of a run."
        ),
    ],
    delta: Annotated[float | None, option("δ. Needed for a schedule; the folder of a run has its own.")] = None,
    everything: Annotated[bool, option("Show what every accountant says, side by side.", name="--all")] = False,
    group: Annotated[int, option("ε for so many records together, added or removed at once.")] = 1,
    figure: Annotated[
        Path | None,
        option("Write a page here: constant noise planned for ε between 0.1 and 4, and what it really costs."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Price a schedule, or recompute the ε of a run from its ledger with Google's dp_accounting.

    Example: apportion account history.json --delta 1e-5 --all

    A run whose stated ε differs from dp_accounting's by more than 0.5 % is an error, with exit code 1.
    """
    from apportion.accounting.comparisons import compare_accountants

    if group != 1 and (everything or figure or path.is_dir()):
        reason = "only PLD prices a schedule for several records together"
        raise InvalidArgument("group", group, reason, "Leave --all, --figure or the run out")
    if path.is_dir():
        facts, events = _read_run(path)
        delta = facts["delta"] if delta is None else delta
        content = {"run": str(path)} | _verify(facts, events, delta)
    else:
        events = read_schedule(path)
        if delta is None:
            fix = "Pass --delta, less than 1/records"
            raise InvalidArgument("delta", None, "a schedule alone does not say it", fix)
        content = {"schedule": str(path)} | _price(events, delta, group)
    rows = compare_accountants(events, delta) if everything else []
    if everything:
        content["accountants"] = [asdict(row) | {"standing": row.standing} for row in rows]
    if figure is not None:
        content["figure"] = str(_write_figure(events, delta, figure))
    if as_json:
        typer.echo(json.dumps(content))
    else:
        _show(content, rows)
    for problem in content.get("problems", ()):
        print_error_stream(f"error: {problem}")
    if content.get("problems"):
        raise typer.Exit(1)


def _price(events: Mapping[Event, int], delta: float, group: int) -> dict[str, Any]:
    from apportion.accounting.accountant import PrivacyLossAccountant

    accountant = PrivacyLossAccountant()
    epsilon = _finite(accountant.epsilon(events, delta, group=group))
    return _facts_of(events, delta) | {"group": group, "epsilon": epsilon, "accountant": accountant.name}


def _finite(epsilon: float) -> float:
    """Refuse a price that is not worth a number."""
    if epsilon == math.inf:
        reason = "its steps cost so much that nothing is protected"
        raise InvalidArgument("path", "the schedule", reason, "Check rates, noise and counts")
    return epsilon


def _facts_of(events: Mapping[Event, int], delta: float) -> dict[str, Any]:
    return {"delta": delta, "steps": sum(events.values()), "different_steps": len(events)}


def _read_run(folder: Path) -> tuple[dict[str, Any], Mapping[Event, int]]:
    """The statement of a run and the charges in its ledger."""
    from apportion.accounting.ledger import Ledger

    for part in (STATEMENT, LEDGER):
        if not (folder / part).is_file():
            fix = "Name a .csv or .json file, or the folder of a private run"
            raise InvalidArgument("path", str(folder), f"it holds no {part}", fix)
    try:
        facts = json.loads((folder / STATEMENT).read_text(encoding="utf-8"))
        validate.delta(facts["delta"])
        for name in ("epsilon", "epsilon_spent"):
            validate.non_negative(name, facts[name], "it is a privacy loss", "Restore it")
        if not isinstance(facts["private"], bool):
            raise InvalidArgument("private", facts["private"], "it is neither true nor false", "Restore it")
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else f"it is not a statement: {error}"
        raise InvalidArgument("path", str(folder / STATEMENT), reason, "Restore it") from error
    ledger = Ledger.open(folder / LEDGER)
    damage, events = ledger.verify(), ledger.counts()
    ledger.close()
    _require_score(facts, folder)
    if damage:
        reason = f"the ledger is damaged ({damage})"
        raise InvalidArgument("path", str(folder / LEDGER), reason, "Restore it from a backup")
    return facts, events


def _require_score(facts: dict[str, Any], folder: Path) -> None:
    """Refuse a statement whose score of held-out records was charged with another ε, where the run's own ledger has that charge."""
    from apportion.accounting.ledger import Ledger

    stated = _score_price(facts)
    if not (folder / SCORE_LEDGER).is_file():
        return  # nothing was held out, or the ledger of the data set was charged
    books = Ledger.open(folder / SCORE_LEDGER)
    charged = math.fsum(choice.epsilon for event in books.events() for choice in event.choices)
    books.close()
    if stated < charged:
        reason = f"it states ε = {stated:g} for the score of held-out records, and {charged:g} was charged"
        raise InvalidArgument("path", str(folder / STATEMENT), reason, "Restore it")


def _score_price(facts: dict[str, Any]) -> float:
    """ε of the score of held-out records, which is a part of the stated ones; 0 if there is none."""
    held = facts.get("holdout")
    if held is None:
        return 0.0
    price = held.get("epsilon") if isinstance(held, Mapping) else None
    return validate.non_negative("holdout.epsilon", price, "it is a privacy loss", "Restore it")


def _verify(facts: dict[str, Any], events: Mapping[Event, int], delta: float) -> dict[str, Any]:
    """Our price and the independent one, and what does not fit together."""
    from apportion.accounting.accountant import PrivacyLossAccountant
    from apportion.accounting.verification import TOLERANCE, independent_price

    score = _score_price(facts)
    ours = _finite(PrivacyLossAccountant().epsilon(events, delta)) + score
    steps = independent_price(events, delta)
    independent = replace(steps, lowest=steps.lowest + score, highest=steps.highest + score)
    claims, search = {"recomputed": ours}, facts.get("search")
    if delta == facts["delta"] and search is None:
        claims["stated"] = facts["epsilon_spent"]
    theirs = _between(independent.lowest, independent.highest)
    problems = [
        f"ε = {claim:.4f} ({kind}) is {abs(independent.difference(claim)):.1%} {side} dp_accounting's {theirs} for the "
        f"{sum(events.values())} charges in the ledger, and more than {TOLERANCE:.1%} is not rounding. "
        + ("Was the ledger or the statement changed after the run?" if kind == "stated" else "Please report this.")
        for kind, claim in claims.items()
        if not independent.agrees(claim)
        for side in ["below" if claim < independent.lowest else "above"]
    ]
    least = independent.lowest if search is None else _selection_price(events, delta, search)
    if delta == facts["delta"] and facts["epsilon"] < least * (1 - TOLERANCE):
        problems.append(
            f"the guarantee ε = {facts['epsilon']:.4f} is less than the charges cost: {theirs}"
            if search is None
            else f"the guarantee ε = {facts['epsilon']:.4f} is less than the best of such trials costs: {least:.4f}"
        )
    return _facts_of(events, delta) | {
        "private": facts["private"],
        "guarantee": facts["epsilon"],
        "search": None if search is None else {**search, "least_epsilon": least},
        "stated": claims.get("stated"),
        "recomputed": ours,
        "held_out_score": score if facts.get("holdout") else None,
        "dp_accounting": {"lowest": independent.lowest, "highest": independent.highest, "rounded": independent.rounded},
        "agrees": not problems,
        "problems": problems,
    }


def _selection_price(events: Mapping[Event, int], delta: float, search: Any) -> float:
    """What dp_accounting asks for the best of a random number of trials like this one. Other candidates may have cost more."""
    from apportion.accounting.selection import selection_epsilon

    try:
        mean, shape = float(search["expected_trials"]), float(search["shape"])
        return selection_epsilon(events, delta, expected_runs=mean, score="public", runs=shape)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(
            "path", STATEMENT, f"its part about the search is damaged: {error}", "Restore it"
        ) from error


def _between(lowest: float, highest: float) -> str:
    return f"{lowest:.4f}" if lowest == highest else f"{lowest:.4f} to {highest:.4f}"


def _write_figure(events: Mapping[Event, int], delta: float, out: Path) -> Path:
    from apportion.cli.account_figure import write_plans

    rates = {event.sample_rate for event in events}
    if len(rates) != 1:
        reason = f"plans are drawn for one sampling rate, and here are {len(rates)}"
        raise InvalidArgument("figure", str(out), reason, "Split the schedule")
    return write_plans(out, sample_rate=rates.pop(), steps=sum(events.values()), delta=delta)


def _show(content: dict[str, Any], rows: list[Comparison]) -> None:
    from apportion.training.statement import show_epsilon

    console = screen()
    steps = f"{content['steps']:,} steps, {content['different_steps']:,} different, δ = {content['delta']:g}"
    if "run" in content:
        _show_run(console, content, steps)
    else:
        whom = "one record" if content["group"] == 1 else f"{content['group']} records together"
        print_lines(
            console,
            f"{content['schedule']}: {steps}",
            f"ε = {show_epsilon(content['epsilon'])} for {whom}, by {content['accountant']}",
            "This holds if every batch was a Poisson sample and the schedule was fixed in advance.",
        )
    if rows:
        table = Table("accountant", "ε", "what it is worth", "note")
        for row in rows:
            worth = Text(row.standing, style="" if row.upper_bound else "bold red")
            table.add_row(row.name, "refused" if row.epsilon is None else f"{row.epsilon:.4f}", worth, row.note)
        console.print(table)
    if "figure" in content:
        print_lines(console, f"Look at   {content['figure']}")


def _show_run(console: Console, content: dict[str, Any], steps: str) -> None:
    from apportion.training.statement import show_epsilon

    theirs, recomputed = content["dp_accounting"], f"recomputed from the ledger, {TAKEN}"
    if content["held_out_score"] is not None:
        print_lines(
            console,
            f"Every ε is the sum of that of the steps and that of the score of held-out records, {content['held_out_score']:g}.",
        )
    table = Table("ε", "value", title=Text(f"{content['run']}: {steps}"))
    if content["stated"] is not None:
        table.add_row(f"stated, {RESERVED}: the guarantee", show_epsilon(content["guarantee"]))
        table.add_row(f"stated, {TAKEN}", show_epsilon(content["stated"]))
    table.add_row(f"{recomputed}, Apportion's PLD", show_epsilon(content["recomputed"]))
    table.add_row(f"{recomputed}, dp_accounting's PLD", _between(theirs["lowest"], theirs["highest"]))
    console.print(table)
    if theirs["rounded"]:
        console.print(
            "dp_accounting is too slow for so many different multipliers. They were rounded to 40, up and down: the true "
            "price lies between the two."
        )
    if content["search"] is not None:
        least = content["search"]["least_epsilon"]
        print_lines(
            console,
            f"The best trial of a search: the guarantee is {content['guarantee']:.4f}, and dp_accounting asks for at least {least:.4f} "
            "for a selection among trials like this one.",
        )
    if not content["private"]:
        console.print(Text("A seed made the noise predictable: this run is NOT private.", style="bold red"))
    if content["agrees"]:
        console.print(f"Those {TAKEN} agree within 0.5 %.")
