"""The statement as one page to print and sign: HTML that fills one sheet of A4 or Letter and needs no network."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from apportion.reporting.formatting import format_count, format_delta, format_epsilon, format_value, list_facts
from apportion.reporting.run_facts import CURATOR, PUBLISHER, TRAINER, RunFacts, attacker_limits
from apportion.reporting.statement_registry import describe_other_runs
from apportion.reporting.statements import round_up_share

BLANKS = {
    "Data, and where it comes from": CURATOR,
    "What the model is for": PUBLISHER,
    "How settings were chosen": TRAINER,
    "Name, date, signature": CURATOR,
}
"""What a run cannot know, and who must write it on the page."""
SPACIOUS = 28
"""Rows and items that fit with the larger letters."""


def make_statement_page(facts: RunFacts) -> str:
    """The HTML of the page."""
    from apportion.training.statement import in_words

    environment = Environment(
        loader=PackageLoader("apportion.reporting", "template"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    said = facts.statement
    promises = [_describe_promise(*promise) for promise in facts.promises()]
    rows = _list_rows(facts)
    lists = len(said["not_covered"]) + len(said.get("assumptions") or ()) + len(promises) + len(rows)
    view = {
        "title": f"Privacy statement: {facts.name}" if facts.name else "Privacy statement",
        "written": said.get("written"),
        "private": said["private"],
        "lead": in_words(dict(said)),
        "promises": promises,
        "together": describe_other_runs(facts),
        "rows": rows,
        "assumptions": list(said.get("assumptions") or ()),
        "covered": said["covered"],
        "not_covered": said["not_covered"],
        "blanks": BLANKS,
        "dense": lists > SPACIOUS,
        "versions": ", ".join(f"{name} {number}" for name, number in said["versions"].items()),
    }
    return environment.get_template("statement.html.j2").render(view)


def _describe_promise(whom: str, epsilon: float, delta: float) -> dict[str, Any]:
    return {
        "whom": whom,
        "epsilon": format_epsilon(epsilon),
        "delta": format_delta(delta),
        "limits": [round_up_share(share) for share in attacker_limits(epsilon, delta).values()],
    }


def _list_rows(facts: RunFacts) -> list[dict[str, str]]:
    said, plan = facts.statement, facts.configuration["plan"]
    users = said.get("users") or {}
    return list_facts(
        [
            ("model, data", ", ".join(filter(None, (facts.model, facts.data)))),
            ("unit of privacy", f"{said['unit']} ({said['neighbours']})"),
            ("records of a user", users.get("rule", "")),
            ("declared population", format_count(said["population"])),
            ("recipe", plan["recipe"]["name"]),
            ("steps", f"{format_count(said['steps_taken'])} of {format_count(said['steps_planned'])} planned"),
            ("sampling", f"{said['sampling']}; sample_rate = {said['sample_rate']:.6g}"),
            ("clip", format_value(said["clip"])),
            ("noise", format_value(said["noise"])),
            ("accountant", said["accountant"]),
            ("why ε is valid", said["validity"]),
            ("search", format_value(said["search"]) if said.get("search") else ""),
            ("randomness", said["randomness"]),
            ("ledger", said["ledger"] + (f"; last row {facts.shared['ledger_head']}" if facts.shared else "")),
            ("on public data", "" if facts.score is None else facts.shown_score),
            ("held-out records", "" if facts.held_out is None else facts.held_out.describe()),
            ("parts of ε", format_value(said["parts"]) if said.get("parts") else ""),
            ("sha256 of the weights", said.get("weights_sha256") or ""),
        ]
    )
