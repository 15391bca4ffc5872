"""What is compared: experiments, and in each of them series of runs.

An experiment is what makes runs comparable: the label that they carry, or else their data set and model. A series is all the
seeds of one recipe at one budget. The report reduces the runs itself, so that no table can say anything else than the curves.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apportion.report.judging import more_than_claimed
from apportion.report.words import number, share, text

Run = Mapping[str, Any]

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


@dataclass(frozen=True)
class Series:
    """All seeds of one recipe at one budget, in one experiment."""

    recipe: str
    target: float | None
    label: str
    dash: str
    runs: tuple[Run, ...]

    @property
    def accuracy(self) -> float | None:
        """The mean over seeds of the last test accuracy."""
        return mean(self._accuracies())

    @property
    def deviation(self) -> float | None:
        """The standard deviation over seeds of the last test accuracy."""
        found = self._accuracies()
        return statistics.stdev(found) if len(found) > 1 else None

    @property
    def epsilon(self) -> float | None:
        """The most that one of the seeds spent."""
        return max(self.numbers("epsilon"), default=None)

    @property
    def status(self) -> str:
        """'none' without an ε; 'seeded' when the noise of a run can be recomputed from its seed; otherwise 'private'."""
        if self.epsilon is None:
            return "none"
        return "seeded" if any(run.get("private") is False for run in self.runs) else "private"

    @property
    def control_of(self) -> str:
        """The recipe of which this one is a control."""
        return next((text(run["control_of"]) for run in self.runs if run.get("control_of") is not None), "")

    @property
    def paper_accuracy(self) -> float | None:
        """What the paper reports."""
        return next((found for found in self.numbers("paper_accuracy") if share(found) is not None), None)

    @property
    def paper_epsilon(self) -> float | None:
        """What the paper claims."""
        return next(iter(self.numbers("paper_epsilon")), None)

    @property
    def above_claim(self) -> bool:
        """Whether it truly spent more than the paper claims, as plans of a limit theorem do."""
        claimed = self.paper_epsilon
        return self.epsilon is not None and claimed is not None and more_than_claimed(self.epsilon, claimed)

    def numbers(self, name: str) -> list[float]:
        """The values of a field, of the seeds that have one."""
        return [found for run in self.runs if (found := number(run.get(name))) is not None]

    def _accuracies(self) -> list[float]:
        return [found for run in self.runs if (found := final_accuracy(run)) is not None]


@dataclass(frozen=True)
class Experiment:
    """Runs that are compared with each other."""

    name: str
    labelled: bool  # whether a person said that these runs belong together, whatever their budgets
    series: tuple[Series, ...]

    @property
    def runs(self) -> list[Run]:
        """All runs, those of a series together."""
        return [run for one in self.series for run in one.runs]

    def contests(self) -> dict[float | None, list[Series]]:
        """The series with an ε and an accuracy that compete: all of a labelled experiment, otherwise those of one budget.

        One that spent more than its claim competes with nobody.
        """
        found: dict[float | None, list[Series]] = defaultdict(list)
        for one in self.series:
            if one.epsilon is not None and one.accuracy is not None and not one.above_claim:
                found[None if self.labelled else one.target].append(one)
        return dict(found)

    def winners(self) -> set[str]:
        """The labels of the series with the highest accuracy, where there is more than one to compare."""
        return {max(rivals, key=accuracy).label for rivals in self.contests().values() if len(rivals) > 1}


def accuracy(one: Series) -> float:
    """To sort by: a series without a measurement comes last."""
    return -1.0 if one.accuracy is None else one.accuracy


def final_accuracy(run: Run) -> float | None:
    """The test accuracy of a run, or the last one of its history."""
    measured = [share(entry.get("test_accuracy")) for entry in run.get("history") or ()]
    return next((one for one in (share(run.get("test_accuracy")), *reversed(measured)) if one is not None), None)


def mean(values: Sequence[float]) -> float | None:
    """The mean, and None of nothing."""
    return math.fsum(values) / len(values) if values else None


def grouped(runs: Iterable[Run], key: Callable[[Run], Any]) -> dict[Any, list[Run]]:
    """Runs by a key, in order of appearance."""
    found: dict[Any, list[Run]] = defaultdict(list)
    for run in runs:
        found[key(run)].append(run)
    return dict(found)


def experiments(runs: Iterable[Run]) -> list[Experiment]:
    """Group runs into experiments, in order of appearance."""

    def key(run: Run) -> tuple[bool, str]:
        if run.get("experiment") is not None:
            return True, text(run["experiment"])
        return False, " · ".join(part for part in (text(run.get("data")), text(run.get("model"))) if part)

    return [Experiment(name, labelled, series(found)) for (labelled, name), found in grouped(runs, key).items()]


def series(runs: Iterable[Run]) -> tuple[Series, ...]:
    """Group runs into series; with several budgets, the label names the budget and each budget has its own dash.

    A control follows the recipe of which it is a control.
    """
    members = grouped(runs, lambda run: (text(run["recipe"]), number(run.get("target_epsilon"))))
    targets = sorted({target for _, target in members if target is not None})
    found = []
    for (recipe, target), seeds in members.items():
        several = len(targets) > 1 and target is not None
        dash = DASHES[targets.index(target) % len(DASHES)] if several and target is not None else "solid"
        label = f"{recipe} (ε = {target:g})" if several else recipe
        found.append(Series(recipe, target, label, dash, tuple(seeds)))
    place = {one.recipe: at for at, one in enumerate(found)}

    def order(at: int) -> tuple[int, bool, int]:
        followed = place.get(found[at].control_of) if found[at].control_of else None
        return (at, False, at) if followed is None else (followed, True, at)

    return tuple(found[at] for at in sorted(range(len(found)), key=order))


def slots(runs: Iterable[Run], colours: int) -> dict[str, int]:
    """Give every recipe, in order of appearance, its slot among so many colours; the first one without privacy gets slot 0."""
    private: dict[str, bool] = {}
    for run in runs:
        name = text(run["recipe"])
        private[name] = private.get(name, False) or number(run.get("epsilon")) is not None
    first_free = next((name for name, has_epsilon in private.items() if not has_epsilon), None)
    coloured = [name for name in private if name != first_free]
    given = {name: 1 + index % (colours - 1) for index, name in enumerate(coloured)}
    return {name: given.get(name, 0) for name in private}
