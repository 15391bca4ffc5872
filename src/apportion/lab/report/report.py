"""From the results of a comparison to one HTML page that needs neither a server nor a network.

`write_report` checks the results, puts them into words (summary, captions, privacy statements), draws the figures and fills
the packaged template. Everything that comes from the results is escaped by the template.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from apportion.errors import InvalidArgument
from apportion.lab.report import figures
from apportion.lab.report.figures import Run, number

VERSION = 1
FILE = "results.json"
DEFAULT_TITLE = "Apportion report"
DASH = "–"
RERUN = "Run `apportion compare` again to write a fresh results.json"
BADGES = {"none": "no privacy", "seeded": "seeded: reproducible, not private"}

Cell = Mapping[str, Any]
Key = tuple[str, str, str, float | None]


def read_results(path: Path | str) -> dict[str, Any]:
    """Read a results.json, or the one in a folder."""
    file = Path(path)
    if file.is_dir():
        file = file / FILE
    if file.exists() and not file.is_file():  # a device has no end
        raise InvalidArgument("path", str(file), "it is not a file", f"Pass a {FILE} or a folder that holds one")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        fix = f"Pass a {FILE} or a folder that holds one; `apportion compare` writes it"
        raise InvalidArgument("path", str(file), "there is no such file", fix) from None
    except OSError as error:
        raise InvalidArgument(
            "path", str(file), f"it cannot be read ({error.strerror})", "Check its permissions"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument("path", str(file), f"it is not valid JSON ({error})", RERUN) from None
    if problem := _problem(found):
        raise InvalidArgument("path", str(file), problem, RERUN)
    return dict(found)


def write_report(results: Mapping[str, Any], path: Path | str, *, title: str | None = None) -> Path:
    """Write the report of `results` to `path` (in a folder: to report.html) and return the path of the page."""
    if problem := _problem(results):
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


# What is wrong with the results


def _problem(results: Any) -> str | None:
    """Say what keeps `results` from being reported, or None."""
    if not isinstance(results, Mapping):
        return "the results must be one JSON object"
    version = results.get("version", VERSION)
    if version != VERSION:
        return f"its version is {version!r} and this release of Apportion reads version {VERSION}"
    runs = results.get("runs")
    if not isinstance(runs, Sequence) or isinstance(runs, str):
        return "it has no list of 'runs'"
    if not runs:
        return "its list of 'runs' is empty, so there is nothing to report"
    for place, run in enumerate(runs):
        if not isinstance(run, Mapping) or "recipe" not in run:
            return f"runs[{place}] is not an object with a 'recipe'"
        history = run.get("history") or ()
        if not isinstance(history, Sequence) or not all(isinstance(entry, Mapping) for entry in history):
            return f"runs[{place}]['history'] is not a list of objects"
    cells = results.get("cells") or ()
    if not isinstance(cells, Sequence) or not all(isinstance(cell, Mapping) and "recipe" in cell for cell in cells):
        return "its 'cells' are not a list of objects with a 'recipe'"
    return None


# Numbers in words


def _percent(value: Any, digits: int = 1) -> str:
    found = number(value)
    return DASH if found is None else f"{100 * found:.{digits}f}\u00a0%"


def _epsilon(value: Any) -> str:
    """ε with three decimals, rounded up: a loss of privacy is never shown smaller than it is."""
    found = number(value)
    if found is None:
        return DASH
    up = Decimal(repr(found)).quantize(Decimal("0.001"), rounding=ROUND_CEILING)
    return f"{up:f}".rstrip("0").rstrip(".")


def _delta(value: Any) -> str:
    found = number(value)
    if found is None:
        return DASH
    mantissa, _, exponent = f"{found:.2e}".partition("e")
    power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    mantissa = mantissa.rstrip("0").rstrip(".")
    return power if mantissa == "1" else f"{mantissa}\u00a0×\u00a0{power}"


def _count(value: Any) -> str:
    found = number(value)
    return DASH if found is None else f"{found:,.0f}" if found == int(found) else f"{found:,.4g}"


def _seconds(value: Any) -> str:
    found = number(value)
    if found is None:
        return DASH
    if found < 60:
        return f"{found:.1f}\u00a0s"
    minutes, seconds = divmod(round(found), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}\u00a0h {minutes:02d}\u00a0min" if hours else f"{minutes}\u00a0min {seconds:02d}\u00a0s"


def _plain(value: Any) -> str:
    """Any value of a configuration as text."""
    if value is None:
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, Mapping):
        rest = ", ".join(f"{name} = {_plain(one)}" for name, one in value.items() if name != "kind")
        return f"{value['kind']}({rest})" if "kind" in value else rest
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_plain, value))
    return str(value)


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# Cells


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _key(one: Mapping[str, Any]) -> Key:
    return _text(one["recipe"]), _text(one.get("data")), _text(one.get("model")), number(one.get("target_epsilon"))


def _grouped(runs: Iterable[Run], key: Callable[[Run], Any]) -> dict[Any, list[Run]]:
    found: dict[Any, list[Run]] = defaultdict(list)
    for run in runs:
        found[key(run)].append(run)
    return dict(found)


def _cells(results: Mapping[str, Any]) -> list[Cell]:
    """The cells of the results, or, where there are none, the same reduction of the runs."""
    if results.get("cells"):
        return list(results["cells"])
    cells: list[Cell] = []
    for (recipe, data, model, target), runs in _grouped(results["runs"], _key).items():
        accuracies = [found for run in runs if (found := figures.final_accuracy(run)) is not None]
        seconds = [found for run in runs if (found := number(run.get("seconds"))) is not None]
        epsilons = [found for run in runs if (found := number(run.get("epsilon"))) is not None]
        cells.append(
            {
                "recipe": recipe,
                "data": data,
                "model": model,
                "target_epsilon": target,
                "epsilon": max(epsilons, default=None),
                "delta": runs[0].get("delta"),
                "test_accuracy": statistics.fmean(accuracies) if accuracies else None,
                "test_accuracy_std": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
                "seeds": [run.get("seed") for run in runs],
                "steps": runs[0].get("steps"),
                "seconds": statistics.fmean(seconds) if seconds else None,
            }
        )
    return cells


def _status(one: Mapping[str, Any], runs: Iterable[Run]) -> str:
    """'none' without an ε; 'seeded' when the noise of a run can be recomputed from its seed; otherwise 'private'."""
    if number(one.get("epsilon")) is None:
        return "none"
    return "seeded" if any(run.get("private") is False for run in runs) else "private"


def _accuracy(cell: Cell) -> float:
    found = number(cell.get("test_accuracy"))
    return -1.0 if found is None else found


def _contests(cells: Iterable[Cell]) -> dict[tuple[str, str, float | None], list[Cell]]:
    """The cells with an ε, by what makes them comparable: data, model and budget."""
    contests: dict[tuple[str, str, float | None], list[Cell]] = defaultdict(list)
    for cell in cells:
        if number(cell.get("epsilon")) is not None and number(cell.get("test_accuracy")) is not None:
            contests[_key(cell)[1:]].append(cell)
    return dict(contests)


def _summary(cells: Sequence[Cell]) -> list[str]:
    """One sentence for each data set, model and budget."""
    models: dict[str, set[str]] = defaultdict(set)
    for cell in cells:
        models[_text(cell.get("data"))].add(_text(cell.get("model")))

    def where(data: str, model: str) -> str:
        on = f" on {data}" if data else ""
        return f"{on} with {model}" if len(models[data]) > 1 and model else on

    sentences, seen = [], set()
    for (data, model, target), rivals in _contests(cells).items():
        seen.add((data, model))
        best = max(rivals, key=_accuracy)
        free = [c for c in cells if number(c.get("epsilon")) is None and _key(c)[1:3] == (data, model)]
        remarks = [f"the highest of {len(rivals)} recipes"] if len(rivals) > 1 else []
        if free and (reference := max(map(_accuracy, free))) >= 0:
            gap = round(100 * (_accuracy(best) - reference), 1)
            side = "level with" if gap == 0 else f"{abs(gap):.1f} points {'below' if gap < 0 else 'above'}"
            remarks.append(f"{side} non-private training")
        spent = _epsilon(best.get("epsilon")) if target is None else f"{target:g}"
        reached = f"At ε = {spent}, {best['recipe']} reached {_percent(best['test_accuracy'])}{where(data, model)}"
        sentences.append(", ".join([reached, " and ".join(remarks)] if remarks else [reached]) + ".")
    for cell in sorted(cells, key=_accuracy, reverse=True):
        group = _key(cell)[1:3]
        if group not in seen and _accuracy(cell) >= 0:
            seen.add(group)
            accuracy = _percent(cell["test_accuracy"])
            sentences.append(f"Without privacy, {cell['recipe']} reached {accuracy}{where(*group)}.")
    return sentences or ["No test accuracy was measured."]


def _rows(cells: Sequence[Cell], runs: Sequence[Run], colours: Mapping[str, int]) -> list[dict[str, Any]]:
    members = _grouped(runs, _key)
    best = {id(max(rivals, key=_accuracy)) for rivals in _contests(cells).values() if len(rivals) > 1}
    rows = []
    counts = [len(seeds) if isinstance(seeds := cell.get("seeds"), (list, tuple)) else 1 for cell in cells]
    for cell, count in zip(cells, counts, strict=True):
        status = _status(cell, members.get(_key(cell), ()))
        target, std = number(cell.get("target_epsilon")), number(cell.get("test_accuracy_std"))
        at = _epsilon(cell.get("epsilon")) if target is None else f"{target:g}"
        rows.append(
            {
                "recipe": _text(cell["recipe"]),
                "slot": colours.get(_text(cell["recipe"]), 0),
                "data": _text(cell.get("data")) or DASH,
                "model": _text(cell.get("model")) or DASH,
                "epsilon": _epsilon(cell.get("epsilon")),
                "target": None if target is None else f"{target:g}",
                "delta": _delta(cell.get("delta")),
                "accuracy": _percent(cell.get("test_accuracy")),
                "std": None if std is None else f"{100 * std:.1f}",
                "seeds": count,
                "show_seeds": len(set(counts)) > 1,
                "steps": _count(cell.get("steps")),
                "seconds": _seconds(cell.get("seconds")),
                "badge": BADGES.get(status),
                "status": status,
                "best": f"{'highest' if count == 1 else 'best mean'} at ε = {at}" if id(cell) in best else None,
            }
        )
    return rows


def _notes(runs: Sequence[Run], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a reader must know before comparing the rows of the table."""
    notes = []
    if any(row["std"] for row in rows):
        counts = {row["seeds"] for row in rows}
        over = f"{max(counts)} seeds" if len(counts) == 1 else "seeds"
        notes.append(
            f"Accuracy is the mean over {over}, ± one standard deviation. "
            "With few seeds, a difference smaller than that is no evidence that one recipe is better."
        )
    spending: dict[str, int] = defaultdict(int)
    for run in runs:
        spending[_text(run.get("data"))] += number(run.get("epsilon")) is not None
    if any(count > 1 for count in spending.values()):
        notes.append(
            "Each ε covers one run by itself. Several runs on the same records together spend more than any one of them."
        )
    if any(row["status"] == "seeded" for row in rows):
        notes.append(
            "A seeded run can be repeated exactly, so its noise can be recomputed and subtracted. Its ε is what the same run "
            "would spend with secret randomness; the run itself protects nobody."
        )
    return notes


# Captions: what there is to see in each figure, for those who look and for those who listen


def _ends(one: figures.Series, key: str) -> tuple[float, float] | None:
    points = figures.curve(one.runs, figures.entry_value(key))
    return (points[0].mean, points[-1].mean) if points else None


def _accuracy_caption(runs: Sequence[Run]) -> str:
    ends = [(one, ends[1]) for one in figures.series(runs) if (ends := _ends(one, "test_accuracy"))]
    ends.sort(key=lambda pair: -pair[1])
    said = [f"{one.label} {_percent(accuracy)}" for one, accuracy in ends[:4]]
    more = f", followed by {len(ends) - 4} more" if len(ends) > 4 else ""
    return f"Higher is better. At the last measurement: {', '.join(said)}{more}."


def _tradeoff_caption(runs: Sequence[Run]) -> str:
    free = any(
        not one.private and any(figures.final_accuracy(run) is not None for run in one.runs)
        for one in figures.series(runs)
    )
    line = " The dotted line is where training without privacy ends." if free else ""
    return f"Up and to the left is better: more accuracy for less privacy spent.{line}"


def _spending_caption(runs: Sequence[Run]) -> str:
    held = [
        (epsilon, target)
        for run in runs
        if (epsilon := number(run.get("epsilon"))) is not None
        and (target := number(run.get("target_epsilon"))) is not None
    ]
    over = sum(epsilon > target for epsilon, target in held)
    text = "The privacy spent can only grow, step by step."
    if not held:
        return text
    if over:
        return f"{text} {over} of {len(held)} runs end above their budget, the dashed line."
    return f"{text} Every run ends at or below its budget, the dashed line."


def _setting_caption(runs: Sequence[Run], key: str, meaning: str) -> str:
    said = []
    for one in figures.series(runs):
        if not (ends := _ends(one, key)):
            continue
        first, last = (f"{end:.3g}" for end in ends)
        values = [point.mean for point in figures.curve(one.runs, figures.entry_value(key))]
        moves = f"{min(values):.3g}" != f"{max(values):.3g}"
        several = any(
            isinstance(entry.get(key), (list, tuple)) for run in one.runs for entry in run.get("history") or ()
        )
        groups = ", on average over its groups" if several else ""
        said.append(f"{one.label} {f'goes from {first} to {last}' if moves else f'stays at {first}'}{groups}")
    more = f"; and {len(said) - 4} more" if len(said) > 4 else ""
    return f"{meaning} {'; '.join(said[:4])}{more}."


PANELS: tuple[tuple[str, str, Callable[..., Any | None], Callable[[Sequence[Run]], str]], ...] = (
    ("accuracy-steps", "Test accuracy against steps", figures.accuracy_by_steps, _accuracy_caption),
    ("accuracy-epsilon", "Test accuracy against ε spent", figures.accuracy_by_epsilon, _tradeoff_caption),
    ("epsilon-steps", "ε spent against steps", figures.epsilon_by_steps, _spending_caption),
    (
        "clip-steps",
        "Clip threshold against steps",
        figures.clip_by_steps,
        lambda runs: _setting_caption(runs, "clip", "The largest length that the gradient of one record may keep:"),
    ),
    (
        "noise-steps",
        "Noise multiplier against steps",
        figures.noise_by_steps,
        lambda runs: _setting_caption(runs, "noise_multiplier", "The noise, as a multiple of the clip threshold:"),
    ),
)


def _sections(runs: Sequence[Run], colours: Mapping[str, int]) -> list[dict[str, Any]]:
    """For each data set and model its figures, their captions and one legend."""
    sections = []
    for place, ((data, model), members) in enumerate(_grouped(runs, lambda run: _key(run)[1:3]).items()):
        panels = []
        for name, heading, draw, caption in PANELS:
            figure = draw(members, colours)
            if figure is not None:
                drawn = json.loads(figure.to_json())
                panels.append(
                    {"id": f"{name}-{place}", "heading": heading, "caption": caption(members), "figure": drawn}
                )
        for at, panel in enumerate(panels):
            panel["wide"] = at == 0 or (at == len(panels) - 1 and len(panels) % 2 == 0)
        if not panels:
            continue
        found = figures.series(members)
        metas = [trace["meta"] for panel in panels for trace in panel["figure"]["data"]]
        dashes = {one.dash: f"ε = {one.target:g}" for one in found if one.target is not None}
        sections.append(
            {
                "id": f"section-{place}",
                "name": " · ".join(part for part in (data, model) if part),
                "recipes": [
                    {"name": name, "slot": colours[name]} for name in dict.fromkeys(one.recipe for one in found)
                ],
                "dashes": [{"dash": dash, "label": label} for dash, label in dashes.items()] if len(dashes) > 1 else [],
                "bands": any(meta["role"] == "band" for meta in metas),
                "stripes": any("twins" in meta for meta in metas),
                "panels": panels,
            }
        )
    return sections


# Statements and details


def _title_of(run: Run) -> str:
    return " · ".join(
        _text(part) for part in (run["recipe"], run.get("data"), run.get("model")) if part not in (None, "")
    )


def _statements(runs: Sequence[Run], colours: Mapping[str, int]) -> list[dict[str, Any]]:
    """The privacy statement of every run with an ε; runs that differ in nothing but their seed share one."""
    spending = [run for run in runs if number(run.get("epsilon")) is not None]
    said = ("statement", "unit", "neighbours", "accountant", "epsilon", "delta")
    shared = _grouped(spending, lambda run: (_key(run), _status(run, [run]), *(_text(run.get(name)) for name in said)))
    found = []
    for members in shared.values():
        run, status = members[0], _status(members[0], members)
        facts = [
            ("ε spent", _epsilon(run.get("epsilon"))),
            ("δ", _delta(run.get("delta"))),
            ("protects one", _plain(run.get("unit"))),
            ("neighbours", _plain(run.get("neighbours"))),
            ("accountant", _plain(run.get("accountant"))),
        ]
        found.append(
            {
                "title": _title_of(run),
                "slot": colours[_text(run["recipe"])],
                "seeds": _seeds(members),
                "badge": BADGES.get(status),
                "status": status,
                "text": _text(run.get("statement")),
                "facts": [{"name": name, "value": value} for name, value in facts if value != DASH],
            }
        )
    return found


def _seeds(runs: Sequence[Run]) -> str:
    seeds = [str(run["seed"]) for run in runs if run.get("seed") is not None]
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {_listed(seeds)}" if seeds else ""


FIELDS = {
    "recipe": "recipe",
    "data": "data",
    "model": "model",
    "epsilon": "ε spent",
    "target_epsilon": "ε budget",
    "delta": "δ",
    "unit": "unit of privacy",
    "neighbours": "neighbours",
    "accountant": "accountant",
    "private": "private",
    "seed": "seed",
    "test_accuracy": "test accuracy",
    "steps": "steps",
    "seconds": "seconds",
    "population": "records",
    "sample_rate": "sample rate",
    "expected_batch_size": "expected batch size",
    "optimizer": "optimizer",
    "lr": "learning rate",
    "clip": "clip strategy",
    "noise": "noise strategy",
}


def _details(runs: Sequence[Run], colours: Mapping[str, int]) -> list[dict[str, Any]]:
    """The whole configuration of every run."""
    found = []
    for run in runs:
        names = [*FIELDS, *(name for name in run if name not in FIELDS and name not in ("history", "statement"))]
        status = _status(run, [run])
        outcome = [] if (accuracy := figures.final_accuracy(run)) is None else [_percent(accuracy)]
        if status != "none":
            outcome.append(f"ε = {_epsilon(run.get('epsilon'))}")
        found.append(
            {
                "title": _title_of(run),
                "slot": colours[_text(run["recipe"])],
                "seeds": _seeds([run]),
                "outcome": ", ".join(outcome),
                "badge": BADGES.get(status),
                "status": status,
                "facts": [
                    {"name": FIELDS.get(name, str(name)), "value": _plain(run[name])}
                    for name in names
                    if run.get(name) is not None
                ],
            }
        )
    return found


def _provenance(results: Mapping[str, Any]) -> list[dict[str, str]]:
    versions = results.get("versions")
    pairs = [("created", results.get("created")), ("apportion", results.get("apportion"))]
    pairs += list(versions.items()) if isinstance(versions, Mapping) else []
    return [{"name": str(name), "value": str(value)} for name, value in pairs if value is not None]


# The page


def _view(results: Mapping[str, Any], title: str | None) -> dict[str, Any]:
    """Everything that the template shows."""
    runs, cells = list(results["runs"]), _cells(results)
    colours = figures.slots(runs)
    rows = _rows(cells, runs, colours)
    sections = _sections(runs, colours)
    lead, *more = _summary(cells)
    return {
        "title": title or _text(results.get("title")) or DEFAULT_TITLE,
        "lead": lead,
        "more": more,
        "rows": rows,
        "notes": _notes(runs, rows),
        "sections": sections,
        "figures": {panel["id"]: panel["figure"] for section in sections for panel in section["panels"]},
        "statements": _statements(runs, colours),
        "details": _details(runs, colours),
        "provenance": _provenance(results),
        "apportion": _text(results.get("apportion")),
        "created": _text(results.get("created")),
        "colours": figures.COLOURS,
        "stripe": figures.STRIPE,
        "font": Markup(figures.FONT),
    }


def _render(view: Mapping[str, Any]) -> str:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = resources.files("apportion.lab.report").joinpath("template.html.j2").read_text(encoding="utf-8")
    return environment.from_string(source).render(view, plotlyjs=Markup(get_plotlyjs()))
