"""From runs to one HTML page that needs neither a server nor a network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from apportion.errors import InvalidArgument
from apportion.extras import require_extra
from apportion.reporting.export import EXPORTS, require_suffix
from apportion.reporting.held_out_score import HeldOutScore
from apportion.reporting.result import FILE, Results, RunResult, read_json, read_results

SUFFIXES = (".html", ".htm", *EXPORTS)
"""How a report may end: a page, or its table alone."""
_PUBLIC = ("privacy.json", "configuration.json", "history.json")
_STATED = (
    *("epsilon", "epsilon_spent", "target_epsilon", "delta", "unit", "neighbours", "accountant", "private"),
    *("population", "sample_rate", "expected_batch_size", "clip", "noise"),
)
_CIRCUMSTANCES = ("folder", "commit", "versions", "key")
"""Details of a run that are no settings: where it is kept, and what it was computed with."""


@runtime_checkable
class FinishedRun(Protocol):
    """What a page needs of an `apportion.Run`."""

    def statement(self) -> dict[str, Any]: ...
    def configuration(self) -> dict[str, Any]: ...
    @property
    def history(self) -> Sequence[Any]: ...


Source = FinishedRun | RunResult | Results | Path | str


def report(
    runs: Source | Iterable[Source] | Mapping[str, Source], path: Path | str, *, title: str | None = None
) -> Path:
    """Write one page about one run or about several side by side, and return its path.

    Args:
        runs: what `train` gives back, `private.run` of `make_private`, results, folders of runs, files of results, or a list of any of
            these. In a dictionary, each key is what its run is called on the page; otherwise a run has the name of its recipe.
        path: of the page; in a folder, report.html. A path that ends in .csv or .tex gets the table alone, a row for each recipe and
            budget.
        title: of the page.

    Examples:
        apportion.report({"constant": one, "decaying": other}, "both.html")
    """
    named: list[tuple[str | None, Source]]
    if isinstance(runs, Mapping):
        named = [(str(name), source) for name, source in runs.items()]
    else:
        listed = [runs] if isinstance(runs, str) or not isinstance(runs, Iterable) else runs
        named = [(None, source) for source in listed]
    found = [_as_results(source, name) for name, source in named]
    if not found:
        raise InvalidArgument("runs", runs, "there is nothing to report", "Pass a run, or a list of runs")
    if len(found) == 1:
        return write_report(found[0], path, title=title)
    return write_report(Results(_number_variants([run for one in found for run in one.runs])), path, title=title)


def write_report(results: Results | Mapping[str, Any], path: Path | str, *, title: str | None = None) -> Path:
    """Write the report of `results`, or of what a file of results holds, to `path` (in a folder: to report.html); return its path.

    A path that ends in .csv or .tex gets the table of the results instead of a page.
    """
    target = Path(path)
    if target.is_dir():
        target = target / "report.html"
    suffix = require_suffix("path", target, SUFFIXES)
    found = results if isinstance(results, Results) else Results.from_json(results)
    page = EXPORTS[suffix](found) if suffix in EXPORTS else _render(found, title)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        reason = f"it cannot be written ({error.strerror})"
        raise InvalidArgument("path", str(target), reason, "Choose a place that can be written to") from None
    return target


def _render(results: Results, title: str | None) -> str:
    require_extra("report", "jinja2", "plotly")
    from apportion.reporting.page import render

    return render(results, title)


def describe_run(
    statement: Mapping[str, Any], configuration: Mapping[str, Any], history: Sequence[Mapping[str, Any]]
) -> RunResult:
    """The result of a private run, from what it says of itself: its statement, its configuration and its history."""
    from apportion.training.statement import in_words

    recipe = configuration["plan"]["recipe"]
    values = {
        **{key: value for key, value in configuration.items() if key != "plan"},
        **{key: statement[key] for key in _STATED},
        "recipe": recipe["name"],
        "update": recipe["update"],
        "steps": statement["steps_taken"],
        "draws": statement["draws_charged"],
        **{name: statement[name] for name in ("groups", "data_set", "parts", "holdout") if statement.get(name)},
        "statement": in_words(dict(statement)),
        "history": history,
    }
    found = RunResult.from_json(values)
    held = HeldOutScore.of(statement)
    return found if held is None else with_held_out(found, held)


def with_held_out(run: RunResult, held: HeldOutScore) -> RunResult:
    """The run with the noisy score of its held-out records in the place of a test score, and its standard error beside it."""
    details = {**run.details, **held.measure.to_json(), f"test_{held.measure.name}_error": held.error}
    return replace(run, details=details).with_score(held.score)


def _as_results(source: Source, name: str | None) -> Results:
    if isinstance(source, (str, Path)):
        results = _read_path(Path(source))
    elif isinstance(source, RunResult):
        results = Results((source,))
    elif isinstance(source, Results):
        results = source
    else:
        results = Results((_describe_finished(source),))
    return results if name is None else replace(results, runs=tuple(replace(run, recipe=name) for run in results.runs))


def _describe_finished(run: Any) -> RunResult:
    if not isinstance(run, FinishedRun):
        fix = "Pass what train gives back, the run of make_private (private.run), the folder of a run, or results.json"
        raise InvalidArgument("runs", type(run).__name__, "it is neither a run nor results", fix)
    return describe_run(run.statement(), run.configuration(), [entry.as_json() for entry in run.history])


def _read_path(path: Path) -> Results:
    """A file of results, a folder with one, or the folder of a single run."""
    public = path / "public"
    if path.is_dir() and not (path / FILE).exists() and public.is_dir():
        fix = f"Pass the folder of a run that was saved, or a folder with a {FILE}"
        statement, configuration, history = (read_json(public / name, fix) for name in _PUBLIC)
        try:
            return Results((describe_run(statement, configuration, history),))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            reason = f"it does not hold a run as `Run.save` writes it ({type(error).__name__}: {error})"
            raise InvalidArgument("runs", str(path), reason, fix) from None
    return read_results(path)


def _number_variants(runs: Sequence[RunResult]) -> tuple[RunResult, ...]:
    """Number runs that have one name and different settings; those with the same settings are repetitions of one run."""
    variants: dict[Any, list[Any]] = defaultdict(list)
    placed = []
    for run in runs:
        details = {name: value for name, value in run.details.items() if name not in _CIRCUMSTANCES}
        settings = (run.sample_rate, run.steps, run.delta, run.data, run.model, details)
        known = variants[run.recipe, run.target_epsilon, run.experiment]
        known += [settings] if settings not in known else []
        placed.append((run, known, known.index(settings) + 1))
    return tuple(
        replace(run, recipe=f"{run.recipe} ({number})") if len(known) > 1 else run for run, known, number in placed
    )
