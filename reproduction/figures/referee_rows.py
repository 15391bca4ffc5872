"""What the referee found, question by question: every method beside the fixed clip, paired over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reproduction.figures.kept_results import Results
from reproduction.figures.tables import escape_markdown, markdown_table
from reproduction.referee.paired import Difference, Verdict, paired_difference, verdicts
from reproduction.trials import Design, Judge, find_winner, read_designs

STUDY = "referee"
HEADINGS = ("method", "what it adapts", "trials", "chosen settings", "accuracy, %", "difference, points", "verdict")
WORDS = ("method", "what it adapts", "chosen settings", "verdict")


@dataclass(frozen=True)
class Row:
    """One method of a question; the baseline has no difference.

    Args:
        trials: how many were kept on each data set that settings are chosen on.
        settings: those that were chosen, in words.
        edge: whether the best trial was at an end of what was tried.
        error: standard error of the mean accuracy.
    """

    method: str
    adapts: str
    trials: int
    settings: str
    edge: bool
    mean: float
    error: float
    difference: Difference | None
    verdict: Verdict | None


def questions() -> dict[str, tuple[Design, Judge]]:
    """All of them by name."""
    return {judge.name: (design, judge) for design in read_designs() for judge in design.judges}


def judged(results: Results, name: str) -> list[Row]:
    """The rows of a question, the baseline first, then from the best difference to the worst; none if it was not run."""
    design, judge = questions()[name]
    found = results.studies[STUDY].runs_of(judge.label) if STUDY in results.studies else {}
    scores = {
        label: {run.seed: run.test_accuracy for run in runs if run.seed is not None and run.test_accuracy is not None}
        for label, runs in found.items()
    }
    baseline = scores.get(design.methods[0].label, {})
    others = {
        label: paired_difference(one, baseline)
        for label, one in scores.items()
        if label != design.methods[0].label and len(set(one) & set(baseline)) > 1
    }
    if not others:
        return []
    said: Mapping[str, Verdict] = dict(zip(others, verdicts(list(others.values())), strict=True))
    rows = []
    for method in design.methods:
        if method.label not in others and method is not design.methods[0]:
            continue
        winner, values = find_winner(design, judge, method, results.trials[STUDY]), list(scores[method.label].values())
        keys = {trial.key for trial in _trials(design, judge, method.label)}
        rows.append(
            Row(
                method.label,
                method.adapts,
                len(keys & set(results.trials[STUDY].found)) // len(judge.chosen_on),
                "" if winner is None else settings_in_words(winner.choice),
                winner is not None and winner.edge,
                statistics.fmean(values),
                statistics.stdev(values) / math.sqrt(len(values)),
                others.get(method.label),
                said.get(method.label),
            )
        )
    return sorted(rows, key=lambda row: -row.difference.mean if row.difference else -math.inf)


def referee_part(results: Results, name: str) -> str:
    """A part of a page: the table of a question, the `summary` of all, or how many `trials` there were."""
    if name == "summary":
        return _summary(results) or "not run yet: `python -m reproduction run referee`"
    if name == "trials":
        return _count_trials(results)
    rows = judged(results, name)
    if not rows:
        return "not run yet: `python -m reproduction trials`, `choose` and `run referee`"
    return markdown_table(HEADINGS, [_cells(row) for row in rows], words=WORDS)


def _trials(design: Design, judge: Judge, label: str) -> list[Any]:
    method = next(one for one in design.methods if one.label == label)
    return [trial for number in range(1, len(method.choices) + 1) for trial in design.trials_of(judge, method, number)]


def _cells(row: Row) -> list[str]:
    return [
        escape_markdown(row.method),
        escape_markdown(row.adapts),
        str(row.trials or ""),
        f"{row.settings}{' (edge)' if row.edge else ''}",
        f"{100 * row.mean:.2f} ± {100 * row.error:.2f}",
        "" if row.difference is None else format_difference(row.difference),
        row.verdict or "–",
    ]


def format_difference(difference: Difference) -> str:
    """In points, with its interval: −0.12 [−0.30, +0.06]."""
    mean, low, high = (f"{100 * one:+.2f}" for one in (difference.mean, difference.low, difference.high))
    return f"{mean} [{low}, {high}]".replace("-", "−")


def settings_in_words(choice: Mapping[str, Any], prefix: str = "") -> str:
    """Settings as on a command line, without the name of the recipe."""
    parts = []
    for key, value in choice.items():
        if isinstance(value, Mapping):
            parts.append(settings_in_words(value, f"{prefix}{key}."))
        elif prefix or key != "name":
            shown = f"{value:g}" if isinstance(value, float) else str(value).replace(" ", "")
            parts.append(f"`{prefix}{key}={shown}`")
    return " ".join(parts)


def _summary(results: Results) -> str:
    """For each question who was better, who was worse, and of whom no difference was shown."""
    blocks = []
    for name, (_, judge) in questions().items():
        rows = judged(results, name)
        if not rows:
            continue
        seeds = max(row.difference.seeds for row in rows if row.difference)
        lines = [f"**{escape_markdown(judge.label)}** ({len(rows) - 1} methods, {seeds} seeds)", ""]
        for verdict in ("better", "no difference shown", "worse"):
            found = [row for row in rows if row.verdict == verdict]
            names = ", ".join(
                escape_markdown(row.method) + f" ({100 * row.difference.mean:+.2f})".replace("-", "−")
                for row in found
                if row.difference
            )
            lines.append(f"- {verdict}: {names or 'none'}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _count_trials(results: Results) -> str:
    entries = results.trials[STUDY].found.values()
    seconds = sum(entry.get("seconds", 0.0) for entry in entries)
    runs = results.studies[STUDY].runs if STUDY in results.studies else ()
    judged_seconds = sum(run.seconds or 0.0 for run in runs)
    return (
        f"{len(entries):,} trials took {seconds:,.0f} seconds of one core, which other work shared, and {len(runs):,} judged runs "
        f"{judged_seconds:,.0f} seconds."
    )
