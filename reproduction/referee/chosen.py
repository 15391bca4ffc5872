"""The study of the referee: of every method the settings that were best in its trials, written by a program and not by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reproduction.referee.design import Design, Judge, Method, read_designs
from reproduction.referee.trials import KeptTrials
from reproduction.study.study import EXPERIMENTS

STUDY = EXPERIMENTS / "referee.toml"
NOTE = (
    "Every method had twelve trials, six learning rates and two values of what is its own, and so had the fixed clip, with its threshold. "
    "The settings were chosen by python -m reproduction choose from results/referee_trials.json, on data that "
    "is not judged on; of the digits, which have no twin, on held-out training records. Pages: docs/referee.md."
)
_HEAD = f'''# Written by `python -m reproduction choose` from results/referee_trials.json: change reproduction/referee/ and not this file.
title = "The referee: published gains beside an equally tuned fixed clip"
source = "ours"
note = "{NOTE}"
'''


@dataclass(frozen=True)
class Winner:
    """The best trial of a method, and its place.

    Args:
        edge: whether it has the first or the last of the values that its variant tried, so that the best may lie beyond.
    """

    choice: dict[str, Any]
    number: int
    score: float
    edge: bool


def find_winner(design: Design, judge: Judge, method: Method, kept: KeptTrials) -> Winner | None:
    """The trial with the highest mean accuracy over the data to choose on, the first of equals; `None` if trials are missing."""
    scores = []
    for number, choice in enumerate(method.choices, start=1):
        entries = [kept.found.get(trial.key) for trial in design.trials_of(judge, method, number)]
        if any(entry is None for entry in entries):
            return None
        scores.append((sum((entry or {}).get("accuracy") or 0.0 for entry in entries) / len(entries), -number, choice))
    score, number, choice = max(scores, key=lambda one: one[:2])
    return Winner(choice, -number, score, -number in method.edges)


def study_text(kept: KeptTrials, seeds: Mapping[str, int] | None = None) -> str:
    """The TOML file. A question of which no method has all trials is left out; a method that lacks some is listed, to be run later.

    Args:
        seeds: how many seeds a question gets, by its name, if not as many as its design says.
    """
    blocks = [_HEAD]
    for design in read_designs():
        for judge in design.judges:
            found = {method.label: find_winner(design, judge, method, kept) for method in design.methods}
            if found[design.methods[0].label] is not None:
                blocks.append(_experiment(design, judge, found, (seeds or {}).get(judge.name, judge.seeds)))
    return "\n".join(blocks)


def _experiment(design: Design, judge: Judge, found: Mapping[str, Winner | None], seeds: int) -> str:
    lines = ["[[experiment]]", f"label = {_value(judge.label)}", f"data = {_value(judge.judged_on)}"]
    lines += [f"{key} = {_value(value)}" for key, value in design.settings.items()]
    lines += ["lr = 1.0", f"seeds = {list(range(1, seeds + 1))}", "recipe = ["]
    for label, winner in found.items():
        if winner is not None:
            lines.append(f"    {{ label = {_value(label)}, {_inner(winner.choice)} }},")
    lines.append("]")
    if waiting := [label for label, winner in found.items() if winner is None]:
        reason = "its trials have not been run, so it is not tuned as the others are"
        lines.append("later = [")
        lines += [f"    {{ label = {_value(label)}, reason = {_value(reason)} }}," for label in waiting]
        lines.append("]")
    return "\n".join(lines) + "\n"


def _inner(table: Mapping[str, Any], prefix: str = "") -> str:
    """A table as `clip.threshold = 0.1, lr = 3.0`."""
    return ", ".join(
        _inner(value, f"{prefix}{key}.") if isinstance(value, Mapping) else f"{prefix}{key} = {_value(value)}"
        for key, value in table.items()
    )


def _value(value: Any) -> str:
    """A value of TOML, which is that of JSON but for tables."""
    return f"{{ {_inner(value)} }}" if isinstance(value, Mapping) else json.dumps(value, ensure_ascii=False)
