"""Thresholds that were searched on public data, by the published rule and by the fast one."""

from __future__ import annotations

from collections.abc import Sequence

from apportion.lab.figures.chart import Panel, Series, chart
from apportion.lab.figures.lines import against, kept
from apportion.lab.figures.results import Results, SearchFile


def search(results: Results) -> str | None:
    """Threshold and accuracy against the epoch, for data on which both rules were used."""
    by_data: dict[str, list[SearchFile]] = {}
    for found in results.searches.values():
        if found.thresholds:
            by_data.setdefault(found.settings.data, []).append(found)
    panels = []
    for data, searches in sorted(by_data.items()):
        if len({one.settings.rule.name for one in searches}) < 2:
            continue
        thresholds = [_line(one, one.thresholds) for one in searches]
        scores = [_line(one, [100 * score for score in one.accuracies()]) for one in searches]
        panels.append(Panel(f"{data}: thresholds", "epoch", "clip threshold", kept(thresholds)))
        panels.append(Panel(f"{data}: accuracy", "epoch", "test accuracy, %", kept(scores)))
    subtitle = "The best candidate of each epoch, by the published greedy rule and by the fast one."
    return chart("Thresholds found on public data", subtitle, panels) if panels else None


def _line(one: SearchFile, values: Sequence[float]) -> Series | None:
    tried = len(one.trace)
    return against(f"{one.settings.rule.name}: {tried} candidates", list(enumerate(values, start=1)))
