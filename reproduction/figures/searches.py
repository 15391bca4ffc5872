"""Thresholds that were searched on public data, by the published rule and by the fast one."""

from __future__ import annotations

from collections.abc import Sequence

from reproduction.figures.chart import Panel, Series, line_chart
from reproduction.figures.kept_results import Results, SearchFile
from reproduction.figures.lines import dotted_line, drop_missing


def search(results: Results) -> str | None:
    """Threshold and accuracy of the best candidate against the epoch, for each data set and rule."""
    by_data: dict[str, list[SearchFile]] = {}
    for found in results.searches.values():
        if found.thresholds:
            by_data.setdefault(found.settings.data, []).append(found)
    panels = []
    for data, searches in sorted(by_data.items()):
        thresholds = [_line(one, one.thresholds) for one in searches]
        scores = [_line(one, [100 * score for score in one.accuracies()]) for one in searches]
        panels.append(Panel(f"{data}: thresholds", "epoch", "clip threshold", drop_missing(thresholds)))
        panels.append(Panel(f"{data}: accuracy", "epoch", "test accuracy, %", drop_missing(scores)))
    subtitle = "The best candidate of each epoch, by the published greedy rule or by the fast one."
    return line_chart("Thresholds found on public data", subtitle, panels) if panels else None


def _line(one: SearchFile, values: Sequence[float]) -> Series | None:
    tried = len(one.trace)
    return dotted_line(f"{one.settings.rule.name}: {tried} candidates", list(enumerate(values, start=1)))
