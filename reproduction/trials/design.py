"""What is tried: the methods of a task, their trials, and the data that settings are chosen on and judged on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from apportion import validate
from apportion.compare.experiment import read_file
from apportion.errors import InvalidArgument
from reproduction.study import read_study
from reproduction.study.paper_experiment import Cell
from reproduction.trials.choices import merged, read_choices
from reproduction.trials.stages import Stage

HERE = Path(__file__).parents[1]
GROUPS: Mapping[str, tuple[str, ...]] = {
    "referee": ("features", "network"),
    "papers": tuple(sorted(path.stem for path in (HERE / "papers").glob("*.toml"))),
}
"""The designs of each folder. Those of the referee are judged together, a paper's table by itself."""


@dataclass(frozen=True)
class Block:
    """What is judged together: one experiment of the study.

    Args:
        settings: those of this experiment alone, such as its ε.
        methods: the labels of those that are judged here; all if it is empty.
    """

    label: str
    seeds: int
    settings: dict[str, Any] = field(default_factory=dict)
    methods: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judge:
    """One question: settings that are best on `chosen_on`, by the mean over these data sets, are run on `judged_on`.

    Args:
        name: in pages.
        blocks: the experiments that they are run in.
        chosen: settings of the experiment for trials alone, where they differ, such as the population.
        chosen_with, judged_with: what a method has in trials and in judged runs alone, by its label: thresholds that were found on the
            other data set.
    """

    name: str
    chosen_on: tuple[str, ...]
    judged_on: str
    blocks: tuple[Block, ...]
    chosen: dict[str, Any]
    chosen_with: dict[str, dict[str, Any]] = field(default_factory=dict)
    judged_with: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Of the first block."""
        return self.blocks[0].label

    @property
    def seeds(self) -> int:
        """Of the first block."""
        return self.blocks[0].seeds


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
    """One run: a choice of a method on one data set.

    Args:
        stage: how long it is.
    """

    method: str
    number: int
    data: str
    cell: Cell
    stage: Stage

    @cached_property
    def key(self) -> str:
        """The fingerprint of its settings."""
        return self.cell.key


@dataclass(frozen=True)
class Design:
    """A task: settings that all runs share, questions and methods, the baseline first.

    Args:
        study: which the chosen settings are written into.
        texts: title, source and note of that study, where the design has it to itself.
        also: experiments of that study that need no trials.
        stages: lengths of the trials, the last one the full length.
        built: the trials that were asked for; to check them takes a while, and pages ask several times.
    """

    name: str
    title: str
    study: str
    texts: dict[str, str]
    also: tuple[dict[str, Any], ...]
    settings: dict[str, Any]
    trial_seed: int
    stages: tuple[Stage, ...]
    judges: tuple[Judge, ...]
    methods: tuple[Method, ...]
    built: dict[tuple[str, str, int, Stage], list[Trial]] = field(default_factory=dict, repr=False, compare=False)

    def trials(self) -> list[Trial]:
        """Those of the first stage, question by question, and method by method."""
        return [
            trial
            for judge in self.judges
            for method in self.methods
            for number in range(1, len(method.choices) + 1)
            for trial in self.trials_of(judge, method, number)
        ]

    def trials_of(self, judge: Judge, method: Method, number: int, stage: Stage | None = None) -> list[Trial]:
        """One choice of a method, on each data set to choose on; of the first stage, if nothing else is said."""
        stage = stage or self.stages[0]
        place = (judge.name, method.label, number, stage)
        if place not in self.built:
            choice = merged(method.choices[number - 1], judge.chosen_with.get(method.label, {}))
            cells = [(data, self._cell(judge, method, choice, data, stage)) for data in judge.chosen_on]
            self.built[place] = [Trial(method.label, number, data, cell, stage) for data, cell in cells]
        return self.built[place]

    def _cell(self, judge: Judge, method: Method, choice: dict[str, Any], data: str, stage: Stage) -> Cell:
        values = self.settings | judge.chosen | {"lr": 1.0, "seeds": [self.trial_seed]} | stage.settings
        entry = {"label": f"trials on {data}", "data": data, "recipe": [choice | {"label": method.label}]}
        return read_study("trials", values | {"experiment": [entry]}).cells[0]


@cache
def read_designs(group: str = "referee") -> tuple[Design, ...]:
    """All of a group, or the one of a paper by its name."""
    validate.known("design", group, (*GROUPS, *GROUPS["papers"]), "there is no such design")
    if group in GROUPS:
        return tuple(read_design(group, name) for name in GROUPS[group])
    return (read_design("papers", group),)


@cache
def read_design(group: str, name: str) -> Design:
    """A task by its name."""
    values = read_file(HERE / group / f"{name}.toml")
    settings = dict(values["settings"])
    seed = settings.pop("trial_seed")
    methods = tuple(_read_method(one, values) for one in values["method"])
    counts = {method.label: len(method.choices) for method in methods}
    if len(set(counts.values())) != 1:
        reason = "methods have different numbers of trials, so that they are not equally tuned"
        raise InvalidArgument("method", counts, reason, "Give each as many as the others")
    count = next(iter(counts.values()))
    stages = [Stage(**one) for one in values.get("stage", ())] + [Stage(None, count)]
    judges = tuple(_read_judge(one) for one in values["judge"])
    texts = {key: values.get(key, "") for key in ("title", "source", "note")}
    study = values.get("study", group)
    also = tuple(values.get("also", ()))
    return Design(name, values["title"], study, texts, also, settings, seed, tuple(stages), judges, methods)


def _read_judge(values: dict[str, Any]) -> Judge:
    """Of one question, with one block if it lists none."""
    listed = values.get("block") or [{"label": values["label"], "seeds": values["seeds"]}]
    blocks = tuple(
        Block(
            one["label"],
            one["seeds"],
            {key: value for key, value in one.items() if key not in ("label", "seeds", "methods")},
            tuple(one.get("methods", ())),
        )
        for one in listed
    )
    return Judge(
        values["name"],
        tuple(values["chosen_on"]),
        values["judged_on"],
        blocks,
        values.get("chosen", {}),
        values.get("chosen_with", {}),
        values.get("judged_with", {}),
    )


def _read_method(values: dict[str, Any], design: dict[str, Any]) -> Method:
    choices, edges = read_choices(values, design.get("vary", {}), design.get("trials", 0))
    return Method(values["label"], values.get("adapts", ""), tuple(choices), frozenset(edges))
