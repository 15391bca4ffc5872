"""Thresholds that were searched on public data, by the published rule and by the fast one."""

from __future__ import annotations

from collections.abc import Sequence

from reproduction.figures.chart import Panel, Series, chart
from reproduction.figures.kept_results import Results, SearchFile
from reproduction.figures.lines import against, kept


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
        panels.append(Panel(f"{data}: thresholds", "epoch", "clip threshold", kept(thresholds)))
        panels.append(Panel(f"{data}: accuracy", "epoch", "test accuracy, %", kept(scores)))
    subtitle = "The best candidate of each epoch, by the published greedy rule or by the fast one."
    return chart("Thresholds found on public data", subtitle, panels) if panels else None


def _line(one: SearchFile, values: Sequence[float]) -> Series | None:
    tried = len(one.trace)
    return against(f"{one.settings.rule.name}: {tried} candidates", list(enumerate(values, start=1)))
