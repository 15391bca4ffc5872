"""What is tried: the methods of a task, their trials, and the data that settings are chosen on and judged on."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from apportion.compare.experiment import read_file
from apportion.errors import InvalidArgument
from reproduction.study import read_study
from reproduction.study.paper_experiment import Cell

HERE = Path(__file__).parent
TASKS = ("features", "network")
"""Each is a file of this folder."""


@dataclass(frozen=True)
class Judge:
    """One question: settings that are best on `chosen_on`, by the mean over these data sets, run with `seeds` seeds on `judged_on`.

    Args:
        name: in pages.
        label: of the experiment in the study.
        chosen: settings of the experiment for trials alone, where they differ, such as the population.
    """

    name: str
    label: str
    chosen_on: tuple[str, ...]
    judged_on: str
    seeds: int
    chosen: dict[str, Any]


@dataclass(frozen=True)
class Method:
    """A recipe, what it adapts, and its trials as choices of a study.

    Args:
        edges: the numbers of the trials at either end of what a variant tries.
    """

    label: str
    adapts: str
    choices: tuple[dict[str, Any], ...]
    edges: frozenset[int]


@dataclass(frozen=True)
class Trial:
    """One run: a choice of a method on one data set."""

    method: str
    number: int
    data: str
    cell: Cell

    @cached_property
    def key(self) -> str:
        """The fingerprint of its settings."""
        return self.cell.key


@dataclass(frozen=True)
class Design:
    """A task: settings that all runs share, questions and methods, the baseline first.

    Args:
        built: the trials that were asked for; to check them takes a while, and pages ask several times.
    """

    name: str
    title: str
    settings: dict[str, Any]
    trial_seed: int
    judges: tuple[Judge, ...]
    methods: tuple[Method, ...]
    built: dict[tuple[str, str, int], list[Trial]] = field(default_factory=dict, repr=False, compare=False)

    def trials(self) -> list[Trial]:
        """All of them, question by question, and method by method."""
        return [
            trial
            for judge in self.judges
            for method in self.methods
            for number in range(1, len(method.choices) + 1)
            for trial in self.trials_of(judge, method, number)
        ]

    def trials_of(self, judge: Judge, method: Method, number: int) -> list[Trial]:
        """One choice of a method, on each data set to choose on."""
        place = (judge.name, method.label, number)
        if place not in self.built:
            choice = method.choices[number - 1]
            cells = [(data, self._cell(judge, method, choice, data)) for data in judge.chosen_on]
            self.built[place] = [Trial(method.label, number, data, cell) for data, cell in cells]
        return self.built[place]

    def _cell(self, judge: Judge, method: Method, choice: dict[str, Any], data: str) -> Cell:
        values = self.settings | judge.chosen | {"lr": 1.0, "seeds": [self.trial_seed]}
        entry = {"label": f"trials on {data}", "data": data, "recipe": [choice | {"label": method.label}]}
        return read_study("trials", values | {"experiment": [entry]}).cells[0]


@cache
def read_designs() -> tuple[Design, ...]:
    """Those of the files that are there."""
    return tuple(read_design(name) for name in TASKS if (HERE / f"{name}.toml").exists())


def read_design(name: str) -> Design:
    """A task by its name."""
    values = read_file(HERE / f"{name}.toml")
    settings = dict(values["settings"])
    seed = settings.pop("trial_seed")
    judges = tuple(
        Judge(one["name"], one["label"], tuple(one["chosen_on"]), one["judged_on"], one["seeds"], one.get("chosen", {}))
        for one in values["judge"]
    )
    methods = tuple(_read_method(one) for one in values["method"])
    counts = {method.label: len(method.choices) for method in methods}
    if len(set(counts.values())) != 1:
        reason = "methods have different numbers of trials, so that they are not equally tuned"
        raise InvalidArgument("method", counts, reason, "Give each as many as the others")
    return Design(name, values["title"], settings, seed, judges, methods)


def _read_method(values: dict[str, Any]) -> Method:
    """The product of its variants and, in each, of the values of one setting."""
    shared = {key: value for key, value in values.items() if key not in ("label", "adapts", "variant")}
    choices: list[dict[str, Any]] = []
    edges: set[int] = set()
    for variant in values["variant"]:
        own = {key: value for key, value in variant.items() if key != "each"}
        [(path, candidates)] = variant["each"].items()
        edges |= {len(choices) + 1, len(choices) + len(candidates)}
        choices += [_merged(_merged(shared, own), _nested(path, value)) for value in candidates]
    return Method(values["label"], values["adapts"], tuple(choices), frozenset(edges))


def _nested(path: str, value: Any) -> dict[str, Any]:
    first, _, rest = path.partition(".")
    return {first: _nested(rest, value) if rest else value}


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Tables within tables are merged, so that `clip.start` and `clip.power` may be said in two places."""
    found = copy.deepcopy(one)
    for key, value in other.items():
        inner = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = _merged(found[key], value) if inner else copy.deepcopy(value)
    return found
