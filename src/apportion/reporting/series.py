"""What is compared: experiments, and in each of them series of runs.

An experiment is what makes runs comparable: the label that they carry, or else their data, model and metric. A series is all the
seeds of one recipe at one budget. The report reduces the runs itself, so that no table can say anything else than the curves.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from apportion.reporting.held_out_score import HeldOutScore
from apportion.reporting.judging import exceeds_claim
from apportion.reporting.measures import Measure
from apportion.reporting.result import RunResult

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


@dataclass(frozen=True)
class Series:
    """All seeds of one recipe at one budget, in one experiment."""

    recipe: str
    target: float | None
    label: str
    dash: str
    runs: tuple[RunResult, ...]

    @property
    def measure(self) -> Measure:
        """What the scores of its runs are."""
        return Measure.of(self.runs[0].details)

    @property
    def score(self) -> float | None:
        """The mean over seeds of the last score on test data."""
        return mean(self.known(lambda run: run.score))

    @property
    def rank(self) -> float:
        """To sort by, the best last."""
        return self.measure.rank(self.score)

    @property
    def deviation(self) -> float | None:
        """The standard deviation over seeds of that score."""
        found = self.known(lambda run: run.score)
        return statistics.stdev(found) if len(found) > 1 else None

    @property
    def spread(self) -> float | None:
        """What stands after ±: the standard deviation over seeds, or the standard error of a single noisy score."""
        held = HeldOutScore.of(self.runs[0].details) if len(self.runs) == 1 else None
        return self.deviation if held is None or not held.useful else held.error

    @property
    def reached(self) -> str:
        """The score, as a sentence has it."""
        shown, spread = self.measure.show_reached(self.score), self.spread
        if not self.measure.held_out or spread is None:
            return shown
        return f"{shown} ± {self.measure.show_error(spread)} (a noisy score of held-out records)"

    @property
    def epsilon(self) -> float | None:
        """The most that one of the seeds spent."""
        return max(self.known(lambda run: run.epsilon), default=None)

    @property
    def seconds(self) -> float | None:
        """The mean over seeds."""
        return mean(self.known(lambda run: run.seconds))

    @property
    def status(self) -> str:
        """'none' without an ε; 'seeded' when the noise of a run can be recomputed from its seed; otherwise 'private'."""
        if self.epsilon is None:
            return "none"
        return "seeded" if any(run.private is False for run in self.runs) else "private"

    @property
    def control_of(self) -> str:
        """The recipe of which this one is a control."""
        return next((run.control_of for run in self.runs if run.control_of is not None), "")

    @property
    def paper_accuracy(self) -> float | None:
        """What the paper reports."""
        return next(iter(self.known(lambda run: run.paper_accuracy)), None)

    @property
    def paper_epsilon(self) -> float | None:
        """What the paper claims."""
        return next(iter(self.known(lambda run: run.paper_epsilon)), None)

    @property
    def above_claim(self) -> bool:
        """Whether it truly spent more than the paper claims, as plans of a limit theorem do."""
        claimed = self.paper_epsilon
        return self.epsilon is not None and claimed is not None and exceeds_claim(self.epsilon, claimed)

    def to_json(self) -> dict[str, Any]:
        """A row of 'cells' in files of results."""
        first = self.runs[0]
        return {
            "recipe": self.recipe,
            "data": first.data,
            "model": first.model,
            "target_epsilon": self.target,
            "delta": first.delta,
            "epsilon": self.epsilon,
            f"test_{first.metric}": self.score,
            f"test_{first.metric}_std": self.deviation,
            "seeds": [run.seed for run in self.runs],
            "steps": first.steps,
            "seconds": None if self.seconds is None else round(self.seconds, 3),
        }

    def known(self, value: Callable[[RunResult], float | None]) -> list[float]:
        """A value of each seed that has one."""
        return [found for run in self.runs if (found := value(run)) is not None]


@dataclass(frozen=True)
class Experiment:
    """Runs that are compared with each other."""

    name: str
    labelled: bool  # whether a person said that these runs belong together, whatever their budgets
    series: tuple[Series, ...]

    @property
    def measure(self) -> Measure:
        """What the scores of all runs are."""
        return self.series[0].measure

    @property
    def runs(self) -> list[RunResult]:
        """All runs, those of a series together."""
        return [run for one in self.series for run in one.runs]

    def contests(self) -> dict[float | None, list[Series]]:
        """The series with an ε and a score that compete: all of a labelled experiment, otherwise those of one budget.

        One that spent more than its claim competes with nobody.
        """
        found: dict[float | None, list[Series]] = defaultdict(list)
        for one in self.series:
            if one.epsilon is not None and one.score is not None and not one.above_claim:
                found[None if self.labelled else one.target].append(one)
        return dict(found)

    def winners(self) -> set[str]:
        """The labels of the series with the best score, where there is more than one to compare."""
        return {max(rivals, key=rank_of).label for rivals in self.contests().values() if len(rivals) > 1}


rank_of = attrgetter("rank")
"""To sort series by, the best last."""


def mean(values: Sequence[float]) -> float | None:
    """The mean, and None of nothing."""
    return math.fsum(values) / len(values) if values else None


def group_runs(runs: Iterable[RunResult], key: Callable[[RunResult], Any]) -> dict[Any, list[RunResult]]:
    """Runs by a key, in order of appearance."""
    found: dict[Any, list[RunResult]] = defaultdict(list)
    for run in runs:
        found[key(run)].append(run)
    return dict(found)


def group_experiments(runs: Iterable[RunResult]) -> list[Experiment]:
    """Group runs into experiments, in order of appearance."""

    def key(run: RunResult) -> tuple[bool, str, str]:
        if run.experiment is not None:
            return True, run.experiment, run.metric
        return False, " · ".join(part for part in (run.data, run.model) if part), run.metric

    found = group_runs(runs, key)
    return [Experiment(name, labelled, group_series(members)) for (labelled, name, _), members in found.items()]


def group_series(runs: Iterable[RunResult]) -> tuple[Series, ...]:
    """Group runs into series; with several budgets, the label names the budget and each budget has its own dash.

    A control follows the recipe of which it is a control.
    """
    members = group_runs(runs, lambda run: (run.recipe, run.target_epsilon))
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


def assign_colours(runs: Iterable[RunResult], colours: int) -> dict[str, int]:
    """Give every recipe, in order of appearance, its slot among so many colours; the first one without privacy gets slot 0."""
    private: dict[str, bool] = {}
    for run in runs:
        private[run.recipe] = private.get(run.recipe, False) or run.epsilon is not None
    first_free = next((name for name, has_epsilon in private.items() if not has_epsilon), None)
    coloured = [name for name in private if name != first_free]
    given = {name: 1 + index % (colours - 1) for index, name in enumerate(coloured)}
    return {name: given.get(name, 0) for name in private}
