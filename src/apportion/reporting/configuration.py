"""Hyper-parameters and provenance: how every run was set up, and by which code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from apportion.reporting.formatting import (
    format_count,
    format_delta,
    format_epsilon,
    format_percent,
    format_seconds,
    format_value,
    join_names,
    list_facts,
)
from apportion.reporting.result import Results, RunResult
from apportion.reporting.series import Experiment, Series

Facts = Mapping[str, Any]

FIELDS = {
    "recipe": "recipe",
    "control_of": "control of",
    "data": "data",
    "model": "model",
    "activation": "activation",
    "epsilon": "ε spent",
    "epsilon_spent": "ε of the steps taken",
    "target_epsilon": "ε budget",
    "paper_epsilon": "ε claimed by the paper",
    "delta": "δ",
    "unit": "unit of privacy",
    "neighbours": "neighbours",
    "accountant": "accountant",
    "private": "private",
    "seed": "seed",
    "metric": "metric",
    "test_accuracy": "test accuracy",
    "paper_accuracy": "accuracy in the paper",
    "steps": "steps",
    "seconds": "seconds",
    "population": "records",
    "sample_rate": "sample rate",
    "expected_batch_size": "expected batch size",
    "loss": "loss",
    "optimizer": "optimizer",
    "momentum": "momentum",
    "lr": "learning rate",
    "lr_follows": "learning rate follows",
    "clip": "clip strategy",
    "noise": "noise strategy",
    "update": "update strategy",
}
WRITTEN: dict[str, Callable[[Any], str]] = {
    "epsilon": format_epsilon,
    "epsilon_spent": format_epsilon,
    "delta": format_delta,
    "test_accuracy": lambda value: format_percent(value, 2),
    "paper_accuracy": lambda value: format_percent(value, 2),
    "steps": format_count,
    "population": format_count,
    "seconds": format_seconds,
}
ELSEWHERE = (
    *("statement", "experiment", "key", "data_set", "configuration", "paper_accuracy_std", "commit", "versions"),
    "better",
)
"""Fields that other parts of the page show, or that say again what others say."""


def list_common(experiment: Experiment) -> list[dict[str, str]]:
    """What all runs share that have it at all, when there is more than one series."""
    runs = list(map(_facts_of, experiment.runs))
    return list_facts([(_title(name), _join_values(runs, name)) for name in _find_common(experiment)])


def list_settings(experiment: Experiment, colours: Mapping[str, int]) -> list[dict[str, Any]]:
    """The rest of the configuration of every series; values that differ between seeds stand one after the other."""
    common = set(_find_common(experiment))
    found = []
    for one in experiment.series:
        runs = list(map(_facts_of, one.runs))
        names = [name for name in _list_names(runs) if name not in common]
        found.append(
            {
                "title": one.label,
                "slot": colours.get(one.recipe, 0),
                "seeds": _list_seeds(one),
                "outcome": _describe_outcome(one),
                "facts": list_facts([(_title(name), _join_values(runs, name)) for name in names]),
            }
        )
    return found


def list_provenance(results: Results) -> list[dict[str, str]]:
    """Where the results come from: a comparison says it once, a study with each run."""
    parts = [results.details, *(run.details for run in results.runs)]
    pairs = [("name", results.name or ""), ("source", results.source or ""), ("created", results.created or "")]
    pairs.append(("commit", _join_values(parts, "commit")))
    versions = [one["versions"] for one in parts if isinstance(one.get("versions"), Mapping)]
    for name in dict.fromkeys(str(name) for found in versions for name in found):
        pairs.append((name, _join_values(versions, name)))
    return list_facts(pairs)


def _facts_of(run: RunResult) -> Facts:
    spent = None if run.epsilon_spent == run.epsilon else run.epsilon_spent
    return replace(run, epsilon_spent=spent).to_json(history=False)


def _title(name: str) -> str:
    return FIELDS.get(name, name)


def _list_names(runs: Sequence[Facts]) -> list[str]:
    own = dict.fromkeys(str(name) for run in runs for name in run)
    return [*FIELDS, *(name for name in own if name not in FIELDS and name not in ELSEWHERE)]


def _find_common(experiment: Experiment) -> list[str]:
    if len(experiment.series) < 2:
        return []
    runs = list(map(_facts_of, experiment.runs))
    private = [_facts_of(run) for one in experiment.series if one.epsilon is not None for run in one.runs]

    def shared(name: str) -> bool:
        """Non-private runs have no unit, no neighbours and the like, which the others may share all the same."""
        values = {format_value(run[name]) for run in runs if run.get(name) is not None}
        return len(values) == 1 and all(run.get(name) is not None for run in private or runs)

    return [name for name in _list_names(runs) if shared(name)]


def _join_values(parts: Sequence[Facts], name: str) -> str:
    write = WRITTEN.get(name, format_value)
    return " | ".join(dict.fromkeys(write(part[name]) for part in parts if part.get(name) is not None))


def _list_seeds(one: Series) -> str:
    seeds = [str(run.seed) for run in one.runs if run.seed is not None]
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {join_names(seeds)}" if seeds else ""


def _describe_outcome(one: Series) -> str:
    outcome = [] if one.score is None else [one.reached]
    return ", ".join(outcome if one.epsilon is None else [*outcome, f"ε = {format_epsilon(one.epsilon)}"])
