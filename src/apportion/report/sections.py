"""One experiment as the page shows it: its table, its figures with captions and one legend, its statements, its settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apportion.report import captions, configuration
from apportion.report import panels as figures
from apportion.report import results_table as table
from apportion.report import sentences as summary
from apportion.report.odds import attacker_view
from apportion.report.reach import reach
from apportion.report.series import Experiment, Series
from apportion.report.statements import statements


@dataclass(frozen=True)
class Panel:
    """One figure of an experiment."""

    name: str
    heading: str
    draw: Callable[[Sequence[Series], Mapping[str, int]], Any | None]
    caption: Callable[[Sequence[Series], Any], str]


PANELS = (
    Panel("accuracy-epsilon", "Test accuracy against ε spent", figures.accuracy_by_epsilon, captions.of_tradeoff),
    Panel("accuracy-steps", "Test accuracy against steps", figures.accuracy_by_steps, captions.of_accuracy),
    Panel("epsilon-steps", "ε spent against steps", figures.epsilon_by_steps, captions.of_spending),
    Panel("clip-steps", "Clip threshold against steps", figures.clip_by_steps, captions.of_clip),
    Panel("noise-steps", "Noise multiplier against steps", figures.noise_by_steps, captions.of_noise),
    Panel("clip-groups", "Clip threshold of each group", figures.clip_by_groups, captions.of_groups),
)


def section(experiment: Experiment, place: int, colours: Mapping[str, int]) -> dict[str, Any]:
    """Everything about one experiment, for the template; `place` makes its ids its own."""
    found, panels = table.rows(experiment, colours), _panels(experiment, place, colours)
    metas = [trace["meta"] for panel in panels for trace in panel["figure"]["data"]]
    series = experiment.series
    dashes = {one.dash: f"ε = {one.target:g}" for one in series if one.target is not None}
    return {
        "place": place,
        "name": experiment.name,
        "summary": summary.of_experiment(experiment),
        "rows": found,
        "columns": table.columns(found),
        "seeded": table.seeded(experiment),
        "notes": table.notes(experiment),
        "panels": panels,
        "recipes": [{"name": name, "slot": colours[name]} for name in dict.fromkeys(one.recipe for one in series)],
        "dashes": [{"dash": dash, "label": label} for dash, label in dashes.items()] if len(dashes) > 1 else [],
        "bands": any(meta["role"] == "band" for meta in metas),
        "stripes": any("twins" in meta for meta in metas),
        "reach": reach(series, colours),
        "statements": statements(series, colours),
        "attacker": attacker_view(experiment.runs),
        "in_common": configuration.in_common(experiment),
        "settings": configuration.settings(experiment, colours),
    }


def _panels(experiment: Experiment, place: int, colours: Mapping[str, int]) -> list[dict[str, Any]]:
    """The figures that have something to show; the first is wide, and so is the last of an even number of them."""
    found: list[dict[str, Any]] = []
    for panel in PANELS:
        figure = panel.draw(experiment.series, colours)
        if figure is not None:
            drawn = json.loads(figure.to_json())
            choices = dict.fromkeys(trace["meta"].get("choice") for trace in drawn["data"])
            found.append(
                {
                    "id": f"{panel.name}-{place}",
                    "heading": panel.heading,
                    "caption": panel.caption(experiment.series, figure),
                    "choices": [choice for choice in choices if choice is not None],
                    "figure": drawn,
                }
            )
    for at, one in enumerate(found):
        one["wide"] = at == 0 or (at == len(found) - 1 and len(found) % 2 == 0)
    return found
