"""The page as a whole: everything that the template shows.

The results of a comparison are one experiment; the results of a table of a paper are several, and the page lets the reader choose
among them. Everything that comes from the results is escaped by the template.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from apportion.reporting import palette, results_table
from apportion.reporting.configuration import list_common, list_provenance, list_settings
from apportion.reporting.curves import find_costs
from apportion.reporting.drawing import STRIPE
from apportion.reporting.panels import draw_panels
from apportion.reporting.result import Results
from apportion.reporting.series import Experiment, assign_colours, group_experiments
from apportion.reporting.statements import collect_statements, describe_attacker

DEFAULT_TITLE = "Apportion report"


def render(results: Results, title: str | None = None) -> str:
    """The HTML of the page."""
    environment = Environment(
        loader=PackageLoader("apportion.reporting", "template"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    view = _describe_results(results, title)
    return environment.get_template("page.html.j2").render(view, plotlyjs=Markup(get_plotlyjs()))


def _describe_results(results: Results, title: str | None) -> dict[str, Any]:
    experiments = group_experiments(results.runs)
    colours = assign_colours(results.runs, len(palette.COLOURS))
    sections = [_describe_experiment(experiment, place, colours) for place, experiment in enumerate(experiments)]
    lead, *more = results_table.summarise(experiments)
    return {
        "title": title or results.title or results.name or DEFAULT_TITLE,
        "source": results.source,
        "note": results.note,
        "lead": lead,
        "more": more,
        "overview": results_table.make_overview(experiments, colours) if len(experiments) > 1 else [],
        "sections": sections,
        "not_run": results_table.list_not_run(results),
        "provenance": list_provenance(results),
        "created": results.created,
        "theme": palette.THEME,
        "colours": palette.COLOURS,
        "ramp": palette.RAMP,
        "font": Markup(palette.FONT),
        "data": {
            "figures": {panel["id"]: panel["figure"] for one in sections for panel in one["panels"]},
            "reach": {f"reach-{one['place']}": one["reach"] for one in sections if one["reach"]},
            "stripe": STRIPE,
        },
    }


def _describe_experiment(experiment: Experiment, place: int, colours: Mapping[str, int]) -> dict[str, Any]:
    """Its table, its figures with captions and one legend, its statements, its settings; `place` makes its ids its own."""
    rows, panels = results_table.make_rows(experiment, colours), draw_panels(experiment, place, colours)
    metas = [trace["meta"] for panel in panels for trace in panel["figure"]["data"]]
    series = experiment.series
    dashes = {one.dash: f"ε = {one.target:g}" for one in series if one.target is not None}
    return {
        "place": place,
        "name": experiment.name,
        "summary": results_table.summarise_experiment(experiment),
        "rows": rows,
        "columns": results_table.choose_columns(rows),
        "seeded": results_table.is_seeded(experiment),
        "notes": results_table.write_notes(experiment),
        "panels": panels,
        "recipes": [{"name": name, "slot": colours[name]} for name in dict.fromkeys(one.recipe for one in series)],
        "dashes": [{"dash": dash, "label": label} for dash, label in dashes.items()] if len(dashes) > 1 else [],
        "bands": any(meta["role"] == "band" for meta in metas),
        "stripes": any("twins" in meta for meta in metas),
        "metric": experiment.measure.name,
        "measured": any(one.score is not None for one in series),
        "score_title": experiment.measure.title.capitalize(),
        "reach": find_costs(series, colours),
        "statements": collect_statements(series, colours),
        "attacker": describe_attacker(experiment.runs),
        "in_common": list_common(experiment),
        "settings": list_settings(experiment, colours),
    }
