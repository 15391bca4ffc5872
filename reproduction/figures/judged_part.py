"""How many printed figures were reached, of all that `judged.toml` lists: cells without a run are counted too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from apportion.reporting.judging import compare_accuracy
from reproduction.figures.kept_results import Cell, Results
from reproduction.figures.referee_rows import settings_in_words
from reproduction.figures.tables import MARKS, escape_markdown, markdown_table
from reproduction.judged import JudgedTable, judged_tables
from reproduction.trials import Design, find_winner, read_designs

HEADINGS = ("table", "printed", "run", "met", "not run")
CHOSEN = ("judged on", "method", "runs to choose", "seconds", "chosen settings")


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
            blocks += [_chosen(table.study, results)] if table.study in _designs() else []
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
        ends = [f"{one:.3f}" for one in (min(spent), max(spent))] if spent else [""]
        true = " to ".join(dict.fromkeys(ends))
        rows.append(
            [escape_markdown(experiment), *(of_row[one].in_words() if one in of_row else "" for one in recipes), true]
        )
    return markdown_table(["", *map(escape_markdown, recipes), "true ε"], rows, words=("",))


def _designs() -> dict[str, Design]:
    """Those of the papers, by their study."""
    return {design.study: design for design in read_designs("papers")}


def _chosen(study: str, results: Results) -> str:
    """What the trials of each method chose, and what they cost; of the methods that have a winner."""
    design, kept = _designs()[study], results.trials["papers"]
    rows = []
    for judge in design.judges:
        for method in design.methods:
            if (winner := find_winner(design, judge, method, kept)) is None:
                continue
            trials = [
                trial
                for stage in design.stages
                for number in range(1, len(method.choices) + 1)
                for trial in design.trials_of(judge, method, number, stage)
                if trial.key in kept.found
            ]
            seconds = sum(kept.found[trial.key]["seconds"] for trial in trials)
            words = settings_in_words(winner.choice) + (" (edge)" if winner.edge else "")
            rows.append(
                [escape_markdown(judge.name), escape_markdown(method.label), str(len(trials)), f"{seconds:,.0f}", words]
            )
    return markdown_table(CHOSEN, rows, words=("judged on", "method", "chosen settings"))


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
