"""Invented results: every cell of a study with made-up numbers, in the form in which studies keep theirs."""

import json
import math
import random

from apportion.reporting import RunResult
from apportion.strategies.descriptions import describe
from reproduction.study import StudyResults, open_study

STUDIES = (
    "ramp_up",
    "lin_table_2",
    "lin_initial",
    "du_table_1",
    "du_consumption",
    "du_sensitivity",
    "du_bounds",
    "monir_consumption",
    "referee",
)


def invented_study(name, folder, *, without=()):
    """Write `folder/name.json` as if all of the study had been run, but for the recipes in `without`; returns its content."""
    results = StudyResults(open_study(name), folder / f"{name}.json")
    for cell in results.study.cells:
        if cell.choice.shown not in without:
            results.runs[cell.place] = RunResult.from_json(invented_run(cell) | {"key": cell.key})
    results.save()
    return results.content()


def invented_run(cell):
    experiment, recipe = cell.experiment, cell.choice.recipe()
    chance = random.Random(f"{cell.place}")
    priced, private = experiment.kind == "price", recipe.private
    printed = cell.choice.paper or {"mnist": 95.0, "fashion-mnist": 84.0}.get(experiment.data, 60.0)
    accuracy = None if priced else round(printed / 100 + chance.uniform(-0.008, 0.006), 4)
    excess = 1.15 if cell.choice.calibrated_by == "clt" else 0.999
    epsilon = experiment.epsilon * excess if private else None
    steps, rate = 900, 1 / 60
    history = [
        {
            "step": step,
            "clip": _threshold(recipe, step * rate, chance) if private else None,
            "epsilon": epsilon and epsilon * (step / steps) ** chance.choice([0.5, 0.52]),
            "test_accuracy": accuracy and accuracy * (1 - 0.4 * math.exp(-step / 100)),
            "median_norm": 0.5 + math.log1p(step) * chance.uniform(0.9, 1.1) if experiment.kind == "norms" else None,
        }
        for step in range(30, steps + 1, 30)
    ]
    return {
        "recipe": cell.choice.shown,
        "data": experiment.data,
        "model": None if priced else experiment.model,
        "seed": cell.seed,
        "sample_rate": rate,
        "clip": describe(recipe.clip) if private else None,
        "noise": describe(recipe.noise) if private else None,
        "epsilon": epsilon,
        "target_epsilon": experiment.epsilon if private else None,
        "delta": experiment.delta if private else None,
        "test_accuracy": accuracy,
        "steps": steps,
        "seconds": round(chance.uniform(100, 300), 3),
        "history": history,
        "claims": {"invented accountant": epsilon} if priced else None,
    }


def _threshold(recipe, epoch, chance):
    settings = describe(recipe.clip)
    start = settings.get("start") or settings.get("threshold") or 1.0
    if recipe.name == "yu-clip":
        return [start / epoch**0.3, start / epoch**0.3]
    return start if settings["kind"] == "Fixed" else start * chance.uniform(0.97, 1.03) / max(1.0, epoch) ** 0.5


def invented_search(folder, data, rule, thresholds):
    """Write a search that has ended."""
    trace = [
        {"run": 1, "epoch": epoch, "threshold": threshold * factor, "accuracy": 0.8 + 0.01 * epoch - abs(factor - 1)}
        for epoch, threshold in enumerate(thresholds, start=1)
        for factor in (0.9, 1.0, 1.1)
    ]
    content = {
        "version": 1,
        "thresholds": thresholds,
        "settings": {"data": data, "rule": {"name": rule}},
        "trace": trace,
    }
    (folder / f"search_{data}_{rule}.json").write_text(json.dumps(content))


def invented_results(folder):
    """Write something for every figure; returns the folder."""
    for name in STUDIES:
        invented_study(name, folder)
    invented_search(folder, "mnist", "greedy", [0.5, 0.4, 0.3, 0.28, 0.25])
    invented_search(folder, "mnist", "fast", [0.55, 0.35, 0.3, 0.26, 0.24])
    return folder
