"""Studies of the settings that were best in their trials, written by a program and not by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reproduction.judged import printed_figures
from reproduction.study.study import EXPERIMENTS
from reproduction.trials.choices import merged
from reproduction.trials.design import GROUPS, Block, Design, Judge, read_designs
from reproduction.trials.kept import KeptTrials
from reproduction.trials.stages import Winner, find_winner

_REFEREE = {
    "title": "The referee: published gains beside an equally tuned fixed clip",
    "source": "ours",
    "note": "Every method had twelve trials, six learning rates and two values of what is its own, and so had the fixed clip, with its "
    "threshold. The settings were chosen by python -m reproduction choose from results/referee_trials.json, on data that "
    "is not judged on; of the digits, which have no twin, on held-out training records. Pages: docs/referee.md.",
}
_NOT_TUNED = "its trials have not been run, so it is not tuned as the others are"


def study_file(name: str) -> Path:
    """Where a written study is kept."""
    return EXPERIMENTS / f"{name}.toml"


def study_texts(group: str, kept: KeptTrials) -> dict[str, str]:
    """The TOML files of a group of designs, by the name of the study. A question of whose first method trials are missing is left out; a
    later method that lacks some is listed, to be run later. A study without a question is not written."""
    found: dict[str, list[str]] = {}
    for design in read_designs(group):
        for judge in design.judges:
            winners = {method.label: find_winner(design, judge, method, kept) for method in design.methods}
            if group == "referee" and winners[design.methods[0].label] is None:
                continue
            if any(winner is not None for winner in winners.values()):
                blocks = [_experiment(design, judge, block, winners) for block in judge.blocks]
                found[design.study] = [*found.get(design.study, []), *blocks]
        if design.study in found:
            found[design.study] += [_untuned(design, one) for one in design.also]
    return {study: "\n".join([_head(group, study), *blocks]) for study, blocks in found.items()}


def _head(group: str, study: str) -> str:
    texts = _REFEREE if group == "referee" else next(one.texts for one in read_designs(group) if one.study == study)
    origin = (
        f"# Written by `python -m reproduction choose` from results/{group}_trials.json: change reproduction/{group}/ and not this "
        "file.\n"
    )
    return origin + "".join(f'{key} = "{texts[key]}"\n' for key in ("title", "source", "note"))


def _experiment(design: Design, judge: Judge, block: Block, winners: Mapping[str, Winner | None]) -> str:
    printed = printed_figures(design.study).get(block.label, {})
    lines = ["[[experiment]]", f"label = {_value(block.label)}", f"data = {_value(judge.judged_on)}"]
    lines += [f"{key} = {_value(value)}" for key, value in (design.settings | block.settings).items()]
    lines += ["lr = 1.0", f"seeds = {list(range(1, block.seeds + 1))}"]
    judged = {label: winner for label, winner in winners.items() if label in (block.methods or winners)}
    recipes, waiting = [], []
    for label, winner in judged.items():
        paper = f", paper = {printed[label]}" if label in printed else ""
        if winner is None:
            waiting.append(f"    {{ label = {_value(label)}{paper}, reason = {_value(_NOT_TUNED)} }},")
        else:
            choice = merged(winner.choice, judge.judged_with.get(label, {}))
            recipes.append(f"    {{ label = {_value(label)}, {_inner(choice)}{paper} }},")
    lines += ["recipe = [", *recipes, "]"] if recipes else []
    lines += ["later = [", *waiting, "]"] if waiting else []
    return "\n".join(lines) + "\n"


def _untuned(design: Design, values: Mapping[str, Any]) -> str:
    """An experiment that needs no trials, with what is printed for its recipes."""
    printed = printed_figures(design.study).get(values["label"], {})
    lines = ["[[experiment]]"]
    for key, value in values.items():
        if key != "recipe":
            lines.append(f"{key} = {_value(value)}")
    recipes = [
        one | {"paper": printed[name]} if (name := one.get("label", one["name"])) in printed else one
        for one in values["recipe"]
    ]
    lines += ["recipe = [", *(f"    {_value(one)}," for one in recipes), "]"]
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


def group_of(design: str) -> str:
    """The group that a design belongs to; a group's own name is itself."""
    return design if design in GROUPS else "papers"
