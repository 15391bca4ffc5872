"""Which recipe to take: the best at each budget that was tried, and those that could as well be the best."""

from __future__ import annotations

import math
from collections.abc import Sequence

from apportion.reporting.judging import CLOSE
from reproduction.figures.kept_results import Cell, Results
from reproduction.figures.tables import escape_markdown, format_accuracy, markdown_table

COMPARISONS = ("lin_table_2", "lin_table_3", "du_table_1", "du_table_2", "du_table_3", "monir_table_8", "monir_e2")
"""The studies that compare recipes. Others vary one number of a recipe."""
HEADINGS = ("data, model", "ε", "best recipe", "accuracy, %", "as good", "from")


def choosing_table(results: Results) -> str | None:
    """A line for each data set, model and budget at hand; `None` if there is none."""
    groups: dict[tuple[str, str, float], list[tuple[str, Cell]]] = {}
    for study in COMPARISONS:
        for cell in results.studies[study].cells if study in results.studies else ():
            if _keeps_to_budget(cell) and cell.target_epsilon is not None:
                place = (cell.data, cell.model or "", cell.target_epsilon)
                groups.setdefault(place, []).append((study, cell))
    rows = []
    for (data, model, epsilon), found in sorted(groups.items()):
        if len(found) < 2:
            continue  # nothing was compared
        study, best = max(found, key=lambda one: _score(one[1]))
        rows.append(
            [
                f"{escape_markdown(data)}, {escape_markdown(model)}",
                f"{epsilon:g}",
                escape_markdown(best.recipe),
                format_accuracy(best.test_accuracy, best.test_accuracy_std),
                "; ".join(escape_markdown(cell.recipe) for cell in as_good(best, [cell for _, cell in found])) or "–",
                f"`{study}`",
            ]
        )
    return markdown_table(HEADINGS, rows, words=("data, model", "best recipe", "as good", "from")) if rows else None


def as_good(best: Cell, cells: Sequence[Cell]) -> list[Cell]:
    """The others within max(0.3 points, standard error of the best), from the better to the worse."""
    error = (best.test_accuracy_std or 0.0) / math.sqrt(len(best.seeds))
    least = _score(best) - max(CLOSE, error) - 1e-12
    close = [cell for cell in cells if cell is not best and _score(cell) >= least]
    return sorted(close, key=_score, reverse=True)


def _keeps_to_budget(cell: Cell) -> bool:
    """Private, trained, and at the ε that it was given: neither beyond it, as by a limit theorem, nor far below."""
    if cell.epsilon is None or cell.target_epsilon is None or cell.test_accuracy is None:
        return False
    return 0.9 * cell.target_epsilon <= cell.epsilon <= cell.target_epsilon * (1 + 1e-9)


def _score(cell: Cell) -> float:
    return cell.test_accuracy or 0.0
