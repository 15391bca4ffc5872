"""Figures of plans that were priced and not trained."""

from __future__ import annotations

from reproduction.figures.chart import Panel, line_chart
from reproduction.figures.kept_results import Results, StudyFile
from reproduction.figures.lines import drop_missing, over_time


def consumption(title: str, subtitle: str, study: StudyFile, *, logarithmic: bool = False) -> str | None:
    """ε spent against the step: a panel for each experiment, a line for each recipe."""
    axes = frozenset("y" if logarithmic else "")
    panels = []
    for experiment in study.experiments:
        lines = drop_missing(
            over_time(recipe, runs, lambda entry: entry.epsilon, by_epoch=False, positive=logarithmic)
            for recipe, runs in study.runs_of(experiment).items()
        )
        if lines:
            panels.append(Panel(experiment, "step", "ε spent", lines, axes, zero=not logarithmic))
    return line_chart(title, subtitle, panels) if panels else None


def monir_consumption(results: Results) -> str | None:
    """What noise that decays spends in 100 epochs."""
    subtitle = (
        "The multiplier falls from σ₀ = 10; beside it, fixed at 8. A plan ends where the next step would exceed ε = 5."
    )
    return consumption(
        "The budget under noise that decays", subtitle, results.studies["monir_consumption"], logarithmic=True
    )
