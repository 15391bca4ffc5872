"""What the recipe called default reached at each budget: the table that `apportion advise` carries, and its form on a page."""

from __future__ import annotations

import json
import statistics

from apportion.advice.kept_table import KeptResult, middle_multiplier
from apportion.reporting.result import RunResult
from reproduction.figures.kept_results import Results
from reproduction.figures.tables import escape_markdown, format_accuracy, markdown_table

DEFAULT = "default"
STUDIES = ("default_budgets", "lin_table_2")
HEADINGS = ("data, model", "records", "steps", "ε", "noise on an update", "accuracy, %", "from")


def default_results(results: Results) -> list[KeptResult]:
    """One for each experiment of a study that ran the recipe as it is, by data set and ε."""
    found = []
    for study in STUDIES:
        if (content := results.studies.get(study)) is None:
            continue
        for experiment in content.experiments:
            runs = [
                run for run in content.runs_of(experiment).get(DEFAULT, ()) if "last" in run.details.get("noise", ())
            ]
            found += [_keep(runs, study)] if runs else []
    return sorted(found, key=lambda one: (one.data, one.epsilon))


def default_table(results: Results) -> str | None:
    """The same as a table of a page."""
    rows = [
        [
            f"{escape_markdown(one.data)}, {escape_markdown(one.model)}",
            f"{one.population:,}",
            f"{one.steps:,}",
            f"{one.epsilon:g}",
            f"{one.noise_per_update:.2g}",
            format_accuracy(one.accuracy, one.deviation),
            f"`{one.study}`",
        ]
        for one in default_results(results)
    ]
    return markdown_table(HEADINGS, rows, words=("data, model", "from")) if rows else None


def format_table(results: Results) -> str:
    """The content of the file in the package."""
    lines = ",\n ".join(json.dumps(one.to_json()) for one in default_results(results))
    return f"[{lines}]\n"


def _keep(runs: list[RunResult], study: str) -> KeptResult:
    first, accuracies = runs[0], [run.test_accuracy or 0.0 for run in runs]
    noise = first.details["noise"]
    assert first.sample_rate is not None
    return KeptResult(
        data=first.data or "",
        model=first.model or "",
        recipe=first.recipe,
        population=first.population or 0,
        sample_rate=first.sample_rate,
        steps=first.steps or 0,
        epsilon=first.target_epsilon or 0.0,
        delta=first.delta or 0.0,
        noise_multiplier=middle_multiplier(noise["first"], noise["last"]),
        accuracy=statistics.mean(accuracies),
        deviation=statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        seeds=len(runs),
        study=study,
    )
