"""Results as Markdown: ours beside what was printed, experiment by experiment."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.stats import kendalltau

from apportion.reporting.judging import exceeds_claim
from reproduction.figures.kept_results import Cell, NotRun, StudyFile

HEADINGS = ("method", "ours, %", "printed, %", "difference", "true ε", "claimed ε", "seconds")
MARKS = {True: " ✓", False: " ✗", None: ""}


def study_table(study: StudyFile) -> str:
    """A heading, a table and a verdict for each experiment that was run; at the end what was not run, and why."""
    blocks = [f"*{escape_markdown(study.note)}*"] if study.note else []
    if summary := count_met(study.cells):
        blocks.append(f"**{summary}**")
    for experiment in study.experiments:
        if cells := study.of(experiment):
            blocks += [f"**{escape_markdown(experiment)}**", _table(cells)]
            blocks += [line] if (line := _verdict(cells)) else []
    blocks += [_not_run(study.not_run)] if study.not_run else []
    return "\n\n".join(blocks) or "no results yet"


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]], *, words: Sequence[str]) -> str:
    """A table without the columns that would be empty; those named in `words` are aligned to the left, numbers to the right."""
    used = [index for index in range(len(headings)) if any(row[index] for row in rows)]
    lines = [[headings[index] for index in used], ["---" if headings[index] in words else "---:" for index in used]]
    lines += [[row[index] for index in used] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def count_met(cells: Sequence[Cell]) -> str:
    """How many of the cells with a printed figure reached it; empty if there are none."""
    judged = [cell.met for cell in cells if cell.met is not None]
    return f"{sum(judged)} of {len(judged)} met" if judged else ""


def rank_agreement(cells: Sequence[Cell]) -> float | None:
    """Kendall's τ between our accuracies and the printed ones: 1 for the same order, −1 for the reverse.

    Of the cells that are judged; `None` if it has no meaning.
    """
    both = [
        (cell.test_accuracy, cell.paper_accuracy)
        for cell in cells
        if cell.met is not None and cell.test_accuracy is not None and cell.paper_accuracy is not None
    ]
    if len(both) < 2:
        return None
    value = float(kendalltau([ours for ours, _ in both], [printed for _, printed in both]).statistic)
    return None if math.isnan(value) else value


def format_accuracy(accuracy: float | None, deviation: float | None) -> str:
    """An accuracy in percent, with its deviation if there is one."""
    if accuracy is None:
        return ""
    return f"{100 * accuracy:.2f}" + ("" if deviation is None else f" ± {100 * deviation:.2f}")


def escape_markdown(words: str) -> str:
    """Text that Markdown takes as it is."""
    for letter in ("\\", "|", "*", "_", "`", "<", "["):
        words = words.replace(letter, "\\" + letter)
    return " ".join(words.split())


def _table(cells: Sequence[Cell]) -> str:
    """Every recipe, and beneath it what controls it."""
    recipes = {cell.recipe: cell for cell in cells if cell.control_of is None}
    rows = []
    for name, cell in recipes.items():
        rows.append(_row(cell))
        rows += [_control(control, cell) for control in cells if control.control_of == name]
    rows += [_control(cell, None) for cell in cells if cell.control_of is not None and cell.control_of not in recipes]
    return markdown_table(HEADINGS, rows, words=HEADINGS[:1])


def _row(cell: Cell) -> list[str]:
    seeds = f" ({len(cell.seeds)} seeds)" if len(cell.seeds) > 1 else ""
    ours = format_accuracy(cell.test_accuracy, cell.test_accuracy_std)
    return [
        escape_markdown(cell.recipe),
        ours + seeds if ours else "",
        format_accuracy(cell.paper_accuracy, cell.paper_accuracy_std),
        "" if cell.difference is None else _signed(cell.difference) + MARKS[cell.met],
        _spent(cell),
        "" if cell.paper_epsilon is None else f"{cell.paper_epsilon:g}",
        f"{cell.seconds:,.0f}" if ours else "",
    ]


def _spent(cell: Cell) -> str:
    """ε in bold if it is more than was claimed."""
    if cell.epsilon is None:
        return "none"
    more = cell.paper_epsilon is not None and exceeds_claim(cell.epsilon, cell.paper_epsilon)
    return f"**{cell.epsilon:.3f}**" if more else f"{cell.epsilon:.3f}"


def _control(control: Cell, recipe: Cell | None) -> list[str]:
    row = _row(control)
    row[0] = f"↳ control of {escape_markdown(str(control.control_of))}: {row[0]}"
    if recipe is not None and recipe.test_accuracy is not None and control.test_accuracy is not None:
        row[3] = f"recipe − control: {_signed(recipe.test_accuracy - control.test_accuracy)}"
    return row


def _verdict(cells: Sequence[Cell]) -> str:
    tau, judged = rank_agreement(cells), count_met(cells)
    order = "" if tau is None else f"rank agreement with the paper τ = {tau:.2f}".replace("-", "−")
    return "; ".join(part for part in (judged, order) if part) + ("." if judged or order else "")


def _not_run(entries: Sequence[NotRun]) -> str:
    """One line for each reason and the recipes that share it, with their experiments."""
    recipes: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        recipes.setdefault((entry.reason, entry.experiment), []).append(entry.recipe)
    experiments: dict[tuple[str, str], list[str]] = {}
    for (reason, experiment), names in recipes.items():
        experiments.setdefault((reason, ", ".join(names)), []).append(experiment)
    lines = [
        f"- {escape_markdown(names)} ({escape_markdown('; '.join(where))}): {escape_markdown(reason.removeprefix('not run: '))}"
        for (reason, names), where in experiments.items()
    ]
    return "\n".join(["Not run:", "", *lines])


def _signed(share: float) -> str:
    return f"{100 * share:+.2f}".replace("-", "−")
