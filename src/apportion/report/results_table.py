"""The tables of results: one of each experiment, and one of all experiments side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from apportion.report import words
from apportion.report.reading import not_run
from apportion.report.series import Experiment, Series
from apportion.report.statements import BADGES
from apportion.report.words import number, text


def rows(experiment: Experiment, colours: Mapping[str, int]) -> list[dict[str, Any]]:
    """One row for each series."""
    winners = experiment.winners()
    counts = {len(one.runs) for one in experiment.series}
    all_seeded = seeded(experiment)
    found = []
    for one in experiment.series:
        ours, paper = one.accuracy, one.paper_accuracy
        found.append(
            {
                "recipe": one.recipe,
                "slot": colours.get(one.recipe, 0),
                "control_of": one.control_of,
                "data": text(one.runs[0].get("data")) or words.DASH,
                "model": text(one.runs[0].get("model")) or words.DASH,
                "epsilon": words.epsilon(one.epsilon),
                "target": None if one.target is None else f"{one.target:g}",
                "claimed": None if one.paper_epsilon is None else f"{one.paper_epsilon:g}",
                "above_claim": one.above_claim,
                "delta": words.delta(one.runs[0].get("delta")),
                "accuracy": words.percent(ours),
                "deviation": None if one.deviation is None else f"{100 * one.deviation:.1f}",
                "paper": None if paper is None else words.percent(paper),
                "difference": None if paper is None or ours is None else words.points(ours - paper),
                "seeds": len(one.runs) if len(counts) > 1 else None,
                "steps": words.count(one.runs[0].get("steps")),
                "seconds": words.seconds(_mean_seconds(one)),
                "badge": None if all_seeded and one.status == "seeded" else BADGES.get(one.status),
                "status": one.status,
                "best": _best(experiment, one) if one.label in winners else None,
            }
        )
    return found


def columns(found: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """Which columns say something: data and model only where rows differ, the paper only where it is known."""
    return {name: len({row[name] for row in found}) > 1 for name in ("data", "model")} | {
        name: any(row[name] is not None for row in found) for name in ("claimed", "paper")
    }


def seeded(experiment: Experiment) -> bool:
    """Whether every series with an ε is seeded, which is then said once and not in each row."""
    return {one.status for one in experiment.series} - {"none"} == {"seeded"}


def notes(experiment: Experiment) -> list[str]:
    """What a reader must know before comparing the rows of the table."""
    found = []
    series, counts = experiment.series, {len(one.runs) for one in experiment.series}
    if any(one.deviation is not None for one in series):
        over = f"{max(counts)} seeds" if len(counts) == 1 else "seeds"
        found.append(
            f"Accuracy is the mean over {over}, ± one standard deviation. "
            "With few seeds, a difference smaller than that is no evidence that one recipe is better."
        )
    spent = [[one.epsilon or 0.0 for one in rivals] for rivals in experiment.contests().values()]
    if any(max(rivals) > 1.02 * min(rivals) for rivals in spent):
        found.append("These rows did not all spend the same ε: more privacy spent buys accuracy.")
    if any(one.above_claim for one in series):
        found.append(
            "ε is computed from the steps that were run. Where it is above what the paper claims, it is marked, and the row does "
            "not compete for the highest accuracy."
        )
    if any(one.control_of for one in series):
        found.append("A control is set beside the recipe that it names, to show what that recipe itself contributes.")
    spending: dict[str, int] = defaultdict(int)
    for run in experiment.runs:
        spending[text(run.get("data"))] += number(run.get("epsilon")) is not None
    if any(count > 1 for count in spending.values()):
        found.append(
            "Each ε covers one run by itself. Several runs on the same records together spend more than any one of them."
        )
    if any(one.status == "seeded" for one in series):
        found.append(
            "A seeded run can be repeated exactly, so its noise can be recomputed and subtracted. Its ε is what the same run "
            "would spend with secret randomness; the run itself protects nobody."
        )
    return found


def overview(experiments: Sequence[Experiment], colours: Mapping[str, int]) -> list[dict[str, Any]]:
    """One row for each recipe, with its accuracy in each experiment: the table as a paper would print it."""
    by_recipe: dict[str, dict[int, list[Series]]] = defaultdict(lambda: defaultdict(list))
    for place, experiment in enumerate(experiments):
        for one in experiment.series:
            by_recipe[one.recipe][place].append(one)
    winners = [experiment.winners() for experiment in experiments]
    return [
        {
            "recipe": recipe,
            "slot": colours.get(recipe, 0),
            "control_of": next((one.control_of for found in places.values() for one in found if one.control_of), ""),
            "cells": [
                [_overview_cell(one, one.label in winners[place]) for one in places.get(place, ())]
                for place in range(len(experiments))
            ],
        }
        for recipe, places in by_recipe.items()
    ]


def left_out(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """What a study left out, with the reason: one row for the experiments that share it and lack the same recipes."""
    recipes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for entry in not_run(results):
        recipes[text(entry.get("experiment")), text(entry.get("reason"))].append(text(entry.get("recipe")))
    rows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (experiment, reason), names in recipes.items():
        rows[", ".join(names), reason.removeprefix("not run: ")].append(experiment)
    return [
        {"experiments": "; ".join(found), "recipes": names, "reason": reason} for (names, reason), found in rows.items()
    ]


def _overview_cell(one: Series, best: bool) -> dict[str, Any]:
    return {
        "target": f"ε = {one.target:g}" if one.label != one.recipe else "",
        "accuracy": words.percent(one.accuracy),
        "deviation": None if one.deviation is None else f"{100 * one.deviation:.1f}",
        "paper": None if one.paper_accuracy is None else words.percent(one.paper_accuracy),
        "best": best,
    }


def _mean_seconds(one: Series) -> float | None:
    found = one.numbers("seconds")
    return sum(found) / len(found) if found else None


def _best(experiment: Experiment, one: Series) -> str:
    word = "highest" if len(one.runs) == 1 else "best mean"
    if experiment.labelled:
        return word
    return f"{word} at ε = {words.epsilon(one.epsilon) if one.target is None else f'{one.target:g}'}"
