"""How many printed figures were reached, of all that `judged.toml` lists: cells without a run are counted too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from apportion.reporting.judging import compare_accuracy
from reproduction.figures.kept_results import Cell, Results
from reproduction.figures.tables import MARKS, escape_markdown, markdown_table
from reproduction.judged import JudgedTable, judged_tables

HEADINGS = ("table", "printed", "run", "met", "not run")


@dataclass(frozen=True)
class Verdict:
    """A printed figure and our cell, if it was run."""

    experiment: str
    recipe: str
    printed: float
    cell: Cell | None

    @property
    def met(self) -> bool | None:
        """Whether our mean is above the printed accuracy or close to it, at the ε that the paper claims; `None` without a run."""
        if self.cell is None or self.cell.test_accuracy is None:
            return None
        return compare_accuracy(self.cell.test_accuracy, self.printed / 100) != "below"

    def in_words(self) -> str:
        """Ours, then the printed one."""
        if self.cell is None or self.cell.test_accuracy is None:
            return f"– ({self.printed:g})"
        return f"{100 * self.cell.test_accuracy:.2f} ({self.printed:g}){MARKS[self.met]}"


def judge(table: JudgedTable, results: Results) -> list[Verdict]:
    """Every printed figure of a table beside our run."""
    cells: Mapping[tuple[str, str], Cell] = {}
    if table.study in results.studies:
        cells = {(cell.experiment, cell.recipe): cell for cell in results.studies[table.study].cells}
    return [Verdict(one, recipe, printed, cells.get((one, recipe))) for one, recipe, printed in table.cells]


def judged_part(results: Results) -> str:
    """Counts for each table, the cells of those that were run, and what was not run with the reason."""
    found = {table: judge(table, results) for table in judged_tables()}
    rows = [_counts(table.title, verdicts) for table, verdicts in found.items()]
    rows.append(_counts("all", [one for verdicts in found.values() for one in verdicts]))
    blocks = [markdown_table(HEADINGS, rows, words=HEADINGS[:1])]
    for table, verdicts in found.items():
        if any(one.met is not None for one in verdicts):
            blocks += [f"**{escape_markdown(table.title)}**: ours (printed)", _grid(verdicts)]
    return "\n\n".join([*blocks, _not_run(found)])


def _counts(title: str, verdicts: list[Verdict]) -> list[str]:
    run = [one.met for one in verdicts if one.met is not None]
    return [escape_markdown(title), str(len(verdicts)), str(len(run)), str(sum(run)), str(len(verdicts) - len(run))]


def _grid(verdicts: list[Verdict]) -> str:
    """A line for each experiment, a column for each method."""
    recipes = list(dict.fromkeys(one.recipe for one in verdicts))
    rows = []
    for experiment in dict.fromkeys(one.experiment for one in verdicts):
        of_row = {one.recipe: one for one in verdicts if one.experiment == experiment}
        if all(one.met is None for one in of_row.values()):
            continue
        spent = [one.cell.epsilon for one in of_row.values() if one.cell is not None and one.cell.epsilon is not None]
        true = (
            ""
            if not spent
            else f"{min(spent):.3f} to {max(spent):.3f}"
            if max(spent) - min(spent) > 5e-4
            else f"{spent[0]:.3f}"
        )
        rows.append(
            [escape_markdown(experiment), *(of_row[one].in_words() if one in of_row else "" for one in recipes), true]
        )
    return markdown_table(["", *map(escape_markdown, recipes), "true ε"], rows, words=("",))


def _not_run(found: Mapping[JudgedTable, list[Verdict]]) -> str:
    """One line for each table and reason."""
    lines = []
    for table, verdicts in found.items():
        reasons: dict[str, dict[str, list[str]]] = {}
        for one in verdicts:
            if one.met is None:
                cells = reasons.setdefault(table.reason(one.experiment, one.recipe), {})
                cells.setdefault(one.experiment, []).append(one.recipe)
        for reason, cells in reasons.items():
            grouped: dict[str, list[str]] = {}
            for experiment, recipes in cells.items():
                whole = len(recipes) == len(table.printed[experiment])
                grouped.setdefault("all" if whole else ", ".join(recipes), []).append(experiment)
            where = "; ".join(f"{', '.join(labels)}: {recipes}" for recipes, labels in grouped.items())
            lines.append(f"- {escape_markdown(table.title)}: {escape_markdown(where)} ({escape_markdown(reason)})")
    return "\n".join(["Without a run:", "", *lines])
