"""Hyper-parameters and provenance: how every run was set up, and by which code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from apportion.report import words
from apportion.report.series import Experiment, Run, Series

FIELDS = {
    "recipe": "recipe",
    "control_of": "control of",
    "data": "data",
    "model": "model",
    "activation": "activation",
    "epsilon": "ε spent",
    "target_epsilon": "ε budget",
    "paper_epsilon": "ε claimed by the paper",
    "delta": "δ",
    "unit": "unit of privacy",
    "neighbours": "neighbours",
    "accountant": "accountant",
    "private": "private",
    "seed": "seed",
    "test_accuracy": "test accuracy",
    "paper_accuracy": "accuracy in the paper",
    "steps": "steps",
    "seconds": "seconds",
    "population": "records",
    "sample_rate": "sample rate",
    "expected_batch_size": "expected batch size",
    "optimizer": "optimizer",
    "momentum": "momentum",
    "lr": "learning rate",
    "lr_follows": "learning rate follows",
    "clip": "clip strategy",
    "noise": "noise strategy",
    "update": "update strategy",
    "commit": "commit",
    "versions": "versions",
}
WRITTEN: dict[str, Callable[[Any], str]] = {
    "epsilon": words.epsilon,
    "delta": words.delta,
    "test_accuracy": lambda value: words.percent(value, 2),
    "paper_accuracy": lambda value: words.percent(value, 2),
    "steps": words.count,
    "population": words.count,
    "seconds": words.seconds,
}
ELSEWHERE = ("history", "statement", "experiment", "key", "configuration", "paper_accuracy_std")
"""Fields that other parts of the page show, or that say again what others say."""


def in_common(experiment: Experiment) -> list[dict[str, str]]:
    """What all runs share that have it at all, when there is more than one series."""
    return words.facts([(_title(name), _values(experiment.runs, name)) for name in _common(experiment)])


def settings(experiment: Experiment, colours: Mapping[str, int]) -> list[dict[str, Any]]:
    """The rest of the configuration of every series; values that differ between seeds stand one after the other."""
    common = set(_common(experiment))
    return [
        {
            "title": one.label,
            "slot": colours.get(one.recipe, 0),
            "seeds": _seeds(one),
            "outcome": _outcome(one),
            "facts": words.facts(
                [(_title(name), _values(one.runs, name)) for name in _names(one.runs) if name not in common]
            ),
        }
        for one in experiment.series
    ]


def provenance(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """Where the results come from."""
    parts = [results, *results["runs"]]  # a comparison says it once, a study with each run
    pairs = [(name, words.text(results.get(name))) for name in ("name", "source", "created")]
    pairs.append(("commit", _values(parts, "commit")))
    versions = [one["versions"] for one in parts if isinstance(one.get("versions"), Mapping)]
    for name in dict.fromkeys(str(name) for found in versions for name in found):
        pairs.append((name, _values(versions, name)))
    return words.facts(pairs)


def _title(name: str) -> str:
    return FIELDS.get(name, name)


def _names(runs: Sequence[Run]) -> list[str]:
    own = dict.fromkeys(str(name) for run in runs for name in run)
    return [*FIELDS, *(name for name in own if name not in FIELDS and name not in ELSEWHERE)]


def _common(experiment: Experiment) -> list[str]:
    if len(experiment.series) < 2:
        return []
    runs, private = experiment.runs, [run for one in experiment.series if one.epsilon is not None for run in one.runs]

    def shared(name: str) -> bool:
        """Non-private runs have no unit, no neighbours and the like, which the others may share all the same."""
        values = {words.plain(run[name]) for run in runs if run.get(name) is not None}
        return len(values) == 1 and all(run.get(name) is not None for run in private or runs)

    return [name for name in _names(runs) if shared(name)]


def _values(runs: Sequence[Run], name: str) -> str:
    write = WRITTEN.get(name, words.plain)
    return " | ".join(dict.fromkeys(write(run[name]) for run in runs if run.get(name) is not None))


def _seeds(one: Series) -> str:
    seeds = [str(run["seed"]) for run in one.runs if run.get("seed") is not None]
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {words.listed(seeds)}" if seeds else ""


def _outcome(one: Series) -> str:
    outcome = [] if one.accuracy is None else [words.percent(one.accuracy)]
    return ", ".join(outcome if one.epsilon is None else [*outcome, f"ε = {words.epsilon(one.epsilon)}"])
