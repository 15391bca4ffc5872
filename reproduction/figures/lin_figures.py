"""The figures of Lin et al., and the one on the front page."""

from __future__ import annotations

import math

from apportion.reporting.result import HistoryEntry, RunResult, as_number
from reproduction.figures.chart import Panel, line_chart
from reproduction.figures.dots import Group, Row, dot_chart
from reproduction.figures.kept_results import Cell, Results
from reproduction.figures.lines import (
    accuracy,
    dotted_line,
    drop_missing,
    over_time,
    percent,
    runs_for_each_dot,
    setting,
)

MIDDLE = ("MNIST, ε = 2.93", "Fashion-MNIST, ε = 2.7", "CIFAR-10, ε = 6.78")
"""The experiments of Table 2 with the middle one of three budgets, at which all methods are compared."""
BEST = 5
"""So many methods are on the front page; plain DP-SGD is one of them."""


def ramp_up(results: Results) -> str | None:
    """The median norm of unclipped gradients while training, for each fixed threshold."""
    study = results.studies["ramp_up"]
    panels = []
    for experiment in study.experiments:
        lines = drop_missing(
            over_time(recipe, runs, lambda entry: as_number(entry.details.get("median_norm")), positive=True)
            for recipe, runs in study.runs_of(experiment).items()
        )
        if lines:
            panels.append(Panel(experiment, "epoch", "median gradient norm", lines, frozenset("y")))
    subtitle = (
        "Median norm of unclipped gradients with fixed thresholds C. Read without noise, on published benchmarks only."
    )
    return line_chart("Gradient norms while training", subtitle, panels) if panels else None


def lin_thresholds(results: Results) -> str | None:
    """The threshold of every method against the epoch, at the middle budgets."""
    study = results.studies["lin_table_2"]
    panels = []
    for experiment in MIDDLE:
        lines = drop_missing(
            over_time(recipe, runs, joint_threshold, positive=True)
            for recipe, runs in study.runs_of(experiment).items()
            if _comparable(runs[0])
        )
        if any(len({y for _, y in line.points}) > 1 for line in lines):  # fixed thresholds alone show nothing
            panels.append(Panel(experiment, "epoch", "clip threshold", lines, frozenset("y")))
    subtitle = (
        "With a threshold for each layer, the root of the sum of squares. AdaClip is left out: it clips gradients that it has "
        "standardised. Bands: least and most over seeds."
    )
    return line_chart("Thresholds of the methods", subtitle, panels) if panels else None


def joint_threshold(entry: HistoryEntry) -> float | None:
    """√(Σ C_g²): with a threshold for each group, that of all of them together."""
    return math.hypot(*entry.clip) if entry.clip else None


def lin_initial(results: Results) -> str | None:
    """Accuracy against the first threshold of the decay."""
    study = results.studies["lin_initial"]
    lines = []
    for experiment in study.experiments:
        pairs = []
        for recipe, runs in study.runs_of(experiment).items():
            start = setting(runs[0], "clip", "start")
            if isinstance(start, float | int) and start > 0:
                pairs += [(float(start), accuracy(cell)) for cell in study.of(experiment) if cell.recipe == recipe]
        lines.append(dotted_line("lin-decay", pairs))
    panels = [
        Panel(experiment, "first threshold C₀", "test accuracy, %", (line,), frozenset("x"))
        for experiment, line in zip(study.experiments, lines, strict=True)
        if line is not None
    ]
    subtitle = f"Test accuracy with thresholds C₀/√t. {runs_for_each_dot(study)}"
    return line_chart("How much the decay depends on its first threshold", subtitle, panels) if panels else None


def lin_table_2(results: Results) -> str | None:
    """Accuracy of each method beside the printed one, at the middle budgets."""
    study = results.studies["lin_table_2"]
    groups = [_group(experiment, study.of(experiment)) for experiment in MIDDLE if study.of(experiment)]
    subtitle = "Test accuracy at equal privacy. An arrow marks what lies below the axis."
    return dot_chart("Lin et al., Table 2, middle budgets", subtitle, "test accuracy, %", groups) if groups else None


def headline(results: Results) -> str | None:
    """The best methods on MNIST and Fashion-MNIST, plain DP-SGD and training without privacy."""
    study = results.studies["lin_table_2"]
    groups = []
    for experiment in MIDDLE[:2]:
        cells = [cell for cell in study.of(experiment) if cell.control_of is None and cell.test_accuracy is not None]
        private = [cell for cell in cells if cell.epsilon is not None]
        plain = [cell for cell in private if cell.recipe == "abadi"]
        others = [cell for cell in private if cell.recipe != "abadi"]
        best = sorted(others, key=_score, reverse=True)[: BEST - len(plain)]
        without = [cell for cell in cells if cell.epsilon is None]
        if best:
            groups.append(_group(experiment, without + best + plain))
    subtitle = "Test accuracy at one privacy budget; δ = 1/N, one record as the unit."
    title = "What a method makes of the same privacy budget"
    return dot_chart(title, subtitle, "test accuracy, %", groups, printed=False) if groups else None


def _score(cell: Cell) -> float:
    return cell.test_accuracy or 0.0


def _comparable(run: RunResult) -> bool:
    return setting(run, "clip", "kind") != "AdaClip"


def _group(experiment: str, cells: list[Cell]) -> Group:
    """From the best to the worst; what is not private stands first."""
    private = [cell for cell in cells if cell.epsilon is not None and cell.control_of is None]
    best = max(private, key=_score, default=None)
    rows = [
        Row(
            cell.recipe,
            accuracy(cell),
            percent(cell.test_accuracy_std),
            percent(cell.paper_accuracy),
            quiet=cell not in private,
            strong=cell is best,
        )
        for cell in sorted(cells, key=lambda cell: (cell.epsilon is not None, -_score(cell)))
    ]
    return Group(experiment, tuple(rows))
