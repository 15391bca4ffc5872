"""The privacy statements: one for all the runs that promise the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from apportion.report import words
from apportion.report.series import Run, Series
from apportion.report.words import number, text

BADGES = {"none": "no privacy", "seeded": "seeded: reproducible, not private"}


def statements(series: Sequence[Series], colours: Mapping[str, int]) -> list[dict[str, Any]]:
    """The statement of every run with an ε; runs of which the page would say the same share one."""
    shared: dict[Any, list[tuple[Series, Run]]] = defaultdict(list)
    for one in series:
        for run in one.runs:
            if number(run.get("epsilon")) is not None:
                secret = run.get("private") is not False
                shown = tuple((fact["name"], fact["value"]) for fact in _facts(run))
                shared[secret, text(run.get("statement")), shown].append((one, run))
    found = []
    for (secret, said, _), members in shared.items():
        status = "private" if secret else "seeded"
        labels = {one.label: colours[one.recipe] for one, _ in members}
        found.append(
            {
                "recipes": [{"name": label, "slot": slot} for label, slot in labels.items()],
                "runs": len(members),
                "badge": BADGES.get(status),
                "status": status,
                "text": said,
                "facts": _facts(members[0][1]),
            }
        )
    return found


def _facts(run: Run) -> list[dict[str, str]]:
    return words.facts(
        [
            ("ε spent", words.epsilon(run.get("epsilon"))),
            ("δ", words.delta(run.get("delta"))),
            ("protects one", words.plain(run.get("unit"))),
            ("neighbours", words.plain(run.get("neighbours"))),
            ("accountant", words.plain(run.get("accountant"))),
        ]
    )
