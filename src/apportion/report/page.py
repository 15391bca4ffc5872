"""From results to one HTML page that needs neither a server nor a network.

The results of a comparison are one experiment; the results of a table of a paper are several, and the page lets the reader choose
among them. Everything that comes from the results is escaped by the template.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from apportion.errors import InvalidArgument
from apportion.report import configuration, palette, series
from apportion.report import results_table as table
from apportion.report import sentences as summary
from apportion.report.reading import problem_of
from apportion.report.sections import section
from apportion.report.traces import STRIPE
from apportion.report.words import text

DEFAULT_TITLE = "Apportion report"


def write_report(results: Mapping[str, Any], path: Path | str, *, title: str | None = None) -> Path:
    """Write the report of `results` to `path` (in a folder: to report.html) and return the path of the page."""
    if problem := problem_of(results):
        shown = sorted(map(str, results)) if isinstance(results, Mapping) else type(results).__name__
        raise InvalidArgument("results", shown, problem, "Pass the dictionary that a comparison returns or writes")
    target = Path(path)
    if target.is_dir():
        target = target / "report.html"
    page = _render(_view(results, title))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        reason = f"it cannot be written ({error.strerror})"
        raise InvalidArgument("path", str(target), reason, "Choose a place that can be written to") from None
    return target


def _view(results: Mapping[str, Any], title: str | None) -> dict[str, Any]:
    """Everything that the template shows."""
    experiments = series.experiments(results["runs"])
    colours = series.slots(results["runs"], len(palette.COLOURS))
    sections = [section(experiment, place, colours) for place, experiment in enumerate(experiments)]
    lead, *more = summary.of_all(experiments)
    return {
        "title": title or text(results.get("title")) or text(results.get("name")) or DEFAULT_TITLE,
        "source": text(results.get("source")),
        "note": text(results.get("note")),
        "lead": lead,
        "more": more,
        "overview": table.overview(experiments, colours) if len(experiments) > 1 else [],
        "sections": sections,
        "not_run": table.left_out(results),
        "provenance": configuration.provenance(results),
        "created": text(results.get("created")),
        "colours": palette.COLOURS,
        "ramp": palette.RAMP,
        "font": Markup(palette.FONT),
        "data": {
            "figures": {panel["id"]: panel["figure"] for one in sections for panel in one["panels"]},
            "reach": {f"reach-{one['place']}": one["reach"] for one in sections if one["reach"]},
            "stripe": STRIPE,
        },
    }


def _render(view: Mapping[str, Any]) -> str:
    environment = Environment(
        loader=PackageLoader("apportion.report", "template"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(view, plotlyjs=Markup(get_plotlyjs()))
