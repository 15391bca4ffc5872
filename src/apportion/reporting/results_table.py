"""The results of an experiment: in sentences, in a table, and beside all other experiments."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from apportion.reporting.formatting import (
    DASH,
    format_count,
    format_delta,
    format_epsilon,
    format_percent,
    format_points,
    format_seconds,
    join_names,
)
from apportion.reporting.held_out_score import HeldOutScore
from apportion.reporting.judging import CLOSE, compare_accuracy
from apportion.reporting.result import Results, RunResult
from apportion.reporting.series import Experiment, Series, rank_of
from apportion.reporting.statements import BADGES

# In sentences


def summarise_experiment(experiment: Experiment) -> list[str]:
    """One sentence for each budget; of an experiment without any private run, one about the best of them."""
    data = {run.data for run in experiment.runs} - {None, ""}
    where = f" on {data.pop()}" if len(data) == 1 else ""
    free = [one for one in experiment.series if one.epsilon is None and one.score is not None]
    sentences = []
    for target, rivals in experiment.contests().items():
        best = max(rivals, key=rank_of)
        remarks = (
            [f"the {experiment.measure.best} of {len(rivals)} recipes{_name_close(best, rivals)}"]
            if len(rivals) > 1
            else []
        )
        remarks += [f"{_place_beside(best, free)} non-private training"] if free else []
        spent = format_epsilon(best.epsilon) if target is None else f"{target:g}"
        reached = f"At ε = {spent}, {best.recipe} reached {best.reached}{where}"
        sentences.append(", ".join([reached, " and ".join(remarks)] if remarks else [reached]) + ".")
    if not sentences and free:
        best = max(free, key=rank_of)
        sentences.append(f"Without privacy, {best.recipe} reached {best.reached}{where}.")
    return sentences


def summarise(experiments: Sequence[Experiment]) -> list[str]:
    """How the results compare with the paper's, where its figures are known; otherwise what came out of each experiment."""
    sentences = _compare_with_paper([one for experiment in experiments for one in experiment.series])
    if not sentences:
        several = len(experiments) > 1
        found = [(one.name, said) for one in experiments for said in summarise_experiment(one)]
        sentences = [f"{name}: {said}" if several else said for name, said in found]
    return sentences or _describe_held_out(experiments) or ["Nothing was measured on test data."]


def _describe_held_out(experiments: Sequence[Experiment]) -> list[str]:
    """What there is to say about noisy scores of held-out records, each once."""
    found = (HeldOutScore.of(run.details) for experiment in experiments for run in experiment.runs)
    return list(dict.fromkeys(f"{one.describe()}." for one in found if one is not None))


def _name_close(best: Series, rivals: Sequence[Series]) -> str:
    """Those that could as well be the best; beyond three, how many there are."""
    close = [
        one.recipe
        for one in rivals
        if one is not best and best.measure.compare(one.score or 0.0, best.score or 0.0) == "close to"
    ]
    names = join_names(close) if 0 < len(close) <= 3 else f"{len(close)} others"
    return f" ({names} {'is' if len(close) == 1 else 'are'} close to it)" if close else ""


def _place_beside(best: Series, free: Sequence[Series]) -> str:
    """How far the best is from training without privacy, as it is shown: with one digit after the point."""
    return best.measure.show_distance(best.score or 0.0, max(free, key=rank_of).score or 0.0)


def _compare_with_paper(series: Sequence[Series]) -> list[str]:
    pairs = [(one.score, one.paper_accuracy) for one in series if not one.above_claim]
    sides = Counter(compare_accuracy(ours, paper) for ours, paper in pairs if ours is not None and paper is not None)
    if not sides:
        return []
    near = f"within {100 * CLOSE:g} points of the published figure"
    others = [f"{sides[side]} {side}" for side in ("above", "below") if sides[side]]
    said = f"{sides['close to']} of {sides.total()} accuracies are {near}"
    sentences = [f"{said}{', ' + ' and '.join(others) if others else ''}."]
    claims = [one for one in series if one.epsilon is not None and one.paper_epsilon is not None]
    if claims:
        over = sum(one.above_claim for one in claims)
        where = f"above the claimed one in {over} of" if over else "at or below the claimed one in all"
        sentences.append(f"The true ε is {where} {len(claims)} results.")
    return sentences


# In tables


def make_rows(experiment: Experiment, colours: Mapping[str, int]) -> list[dict[str, Any]]:
    """One row for each series."""
    winners = experiment.winners()
    counts = {len(one.runs) for one in experiment.series}
    seeded = is_seeded(experiment)
    found = []
    for one in experiment.series:
        ours, paper, first = one.score, one.paper_accuracy, one.runs[0]
        found.append(
            {
                "recipe": one.recipe,
                "slot": colours.get(one.recipe, 0),
                "control_of": one.control_of,
                "data": first.data or DASH,
                "model": first.model or DASH,
                "epsilon": format_epsilon(one.epsilon),
                "target": None if one.target is None else f"{one.target:g}",
                "claimed": None if one.paper_epsilon is None else f"{one.paper_epsilon:g}",
                "above_claim": one.above_claim,
                "delta": format_delta(first.delta),
                "score": one.measure.show(ours),
                "deviation": None if one.spread is None else one.measure.show_spread(one.spread),
                "paper": None if paper is None else format_percent(paper),
                "difference": None if paper is None or ours is None else format_points(ours - paper),
                "runs": len(one.runs) if len(counts) > 1 else None,
                "steps": format_count(first.steps),
                "seconds": None if one.seconds is None else format_seconds(one.seconds),
                "badge": None if seeded and one.status == "seeded" else BADGES.get(one.status),
                "status": one.status,
                "best": _describe_best(experiment, one) if one.label in winners else None,
            }
        )
    return found


def choose_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """Which columns say something: data and model only where rows differ, the paper and the time only where they are known."""
    return {name: len({row[name] for row in rows}) > 1 for name in ("data", "model")} | {
        name: any(row[name] is not None for row in rows) for name in ("claimed", "paper", "seconds")
    }


def is_seeded(experiment: Experiment) -> bool:
    """Whether every series with an ε is seeded, which is then said once and not in each row."""
    return {one.status for one in experiment.series} - {"none"} == {"seeded"}


def write_notes(experiment: Experiment) -> list[str]:
    """What a reader must know before comparing the rows of the table."""
    found = _describe_held_out([experiment])
    series, counts = experiment.series, {len(one.runs) for one in experiment.series}
    if any(one.deviation is not None for one in series):
        over = f"{max(counts)} runs" if len(counts) == 1 else "runs"
        found.append(
            f"{experiment.measure.name.capitalize()} is the mean over {over}, ± one standard deviation. "
            "With few runs, a difference smaller than that is no evidence that one recipe is better."
        )
    spent = [[one.epsilon or 0.0 for one in rivals] for rivals in experiment.contests().values()]
    if any(max(rivals) > 1.02 * min(rivals) for rivals in spent):
        found.append("These rows did not all spend the same ε: more privacy spent buys a better model.")
    if any(one.above_claim for one in series):
        found.append(
            "ε is computed from the steps that were run. Where it is above what the paper claims, it is marked, and the row does "
            "not compete for the best result."
        )
    if any(one.control_of for one in series):
        found.append("A control is set beside the recipe that it names, to show what that recipe itself contributes.")
    found += _relate_runs([run for run in experiment.runs if run.epsilon is not None])
    if any(one.status == "seeded" for one in series):
        found.append(
            "A seeded run can be repeated exactly, so its noise can be recomputed and subtracted. Its ε is what the same run "
            "would spend with secret randomness; the run itself protects nobody."
        )
    return found


def _relate_runs(runs: Sequence[RunResult]) -> list[str]:
    """What several runs on the same records cost together: what their ledger says, or that nobody added up."""
    ledgers = {one["name"]: one for run in runs if isinstance(one := run.details.get("data_set"), Mapping)}
    found = [
        f"Runs on {name} are charged to one ledger: all of them together, also those that are not shown, cost at most "
        f"ε = {one['limit_epsilon']:g}, δ = {one['limit_delta']:g}."
        for name, one in ledgers.items()
    ]
    alone = Counter(run.data for run in runs if not run.details.get("data_set"))
    if any(count > 1 for count in alone.values()):
        found.append(
            "Each ε covers one run by itself. Several runs on the same records together spend more than any one of them."
        )
    return found


def make_overview(experiments: Sequence[Experiment], colours: Mapping[str, int]) -> list[dict[str, Any]]:
    """One row for each recipe, with its score in each experiment: the table as a paper would print it."""
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
                [_make_cell(one, one.label in winners[place]) for one in places.get(place, ())]
                for place in range(len(experiments))
            ],
        }
        for recipe, places in by_recipe.items()
    ]


def list_not_run(results: Results) -> list[dict[str, str]]:
    """What was left out, with the reason: one row for the experiments that share it and lack the same recipes."""
    recipes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for entry in (*(results.not_run or ()), *(results.skipped or ())):
        recipes[entry.experiment or "", entry.reason].append(entry.recipe)
    rows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (experiment, reason), names in recipes.items():
        rows[", ".join(names), reason.removeprefix("not run: ")].append(experiment)
    return [
        {"experiments": "; ".join(filter(None, found)), "recipes": names, "reason": reason}
        for (names, reason), found in rows.items()
    ]


def _make_cell(one: Series, best: bool) -> dict[str, Any]:
    return {
        "target": f"ε = {one.target:g}" if one.label != one.recipe else "",
        "score": one.measure.show(one.score),
        "deviation": None if one.spread is None else one.measure.show_spread(one.spread),
        "paper": None if one.paper_accuracy is None else format_percent(one.paper_accuracy),
        "best": best,
    }


def _describe_best(experiment: Experiment, one: Series) -> str:
    word = one.measure.best if len(one.runs) == 1 else "best mean"
    if experiment.labelled:
        return word
    return f"{word} at ε = {format_epsilon(one.epsilon) if one.target is None else f'{one.target:g}'}"
