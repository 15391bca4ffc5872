"""The figures of Du et al."""

from __future__ import annotations

from apportion.reporting.result import RunResult
from reproduction.figures.chart import Panel, line_chart
from reproduction.figures.kept_results import Results
from reproduction.figures.lines import accuracy, dotted_line, drop_missing, percent, runs_for_each_dot, setting
from reproduction.figures.prices import consumption

_FALL = (
    ("clip", "1/ρ_c: the last threshold over the first"),
    ("noise", "1/ρ_μ: the last noise multiplier over the first"),
)


def du_table_1(results: Results) -> str | None:
    """Accuracy against ε: ours at the ε that was truly spent, the printed one at the ε that was claimed."""
    cells = [cell for cell in results.studies["du_table_1"].cells if cell.epsilon is not None and cell.paper_epsilon]
    panels = []
    for data in dict.fromkeys(cell.data for cell in cells):
        here = [cell for cell in cells if cell.data == data]
        recipes = dict.fromkeys(cell.recipe for cell in here)
        of = {recipe: [cell for cell in here if cell.recipe == recipe] for recipe in recipes}
        ours = [dotted_line(name, [(cell.epsilon or 0.0, accuracy(cell)) for cell in of[name]]) for name in recipes]
        printed = [
            dotted_line(
                name, [(cell.paper_epsilon or 0.0, percent(cell.paper_accuracy)) for cell in of[name]], dashed=True
            )
            for name in recipes
        ]
        once = {
            line.points: line for line in reversed(drop_missing(printed))
        }  # a recipe calibrated in two ways was printed once
        if any(ours):
            title = here[0].experiment.partition(",")[0]
            panels.append(Panel(title, "ε", "test accuracy, %", drop_missing([*once.values(), *ours])))
    subtitle = "Full dots: ours, at the ε truly spent. Hollow dots, dashed: printed, at the ε claimed there."
    return line_chart("Du et al., Table 1: noise and threshold that fall", subtitle, panels) if panels else None


def du_consumption(results: Results) -> str | None:
    """What growing-μ spends from step to step."""
    subtitle = "Noise that falls by the factor ρ keeps the budget for the last steps. All plans end at the same ε."
    return consumption("The budget over the steps, growing-μ", subtitle, results.studies["du_consumption"])


def du_sensitivity(results: Results) -> str | None:
    """Accuracy against the factors by which threshold and noise fall."""
    study = results.studies["du_sensitivity"]
    panels = []
    for experiment in study.experiments:
        runs = {recipe: members[0] for recipe, members in study.runs_of(experiment).items()}
        for role, name in _FALL:
            found = {recipe: _fall(run, role) for recipe, run in runs.items()}
            if len(set(found.values())) < 2:
                continue
            pairs = [(x, accuracy(cell)) for cell in study.of(experiment) if (x := found.get(cell.recipe)) is not None]
            line = dotted_line("du-dynamic", pairs)
            panels += [Panel(experiment, name, "test accuracy, %", (line,))] if line else []
    subtitle = f"MNIST, ε = 0.4. {runs_for_each_dot(study)}"
    return line_chart("How much dynamic DP-SGD depends on its factors", subtitle, panels) if panels else None


def du_bounds(results: Results) -> str | None:
    """The true ε against the one that a central limit theorem claims."""
    cells = results.studies["du_bounds"].cells
    recipes = dict.fromkeys(cell.recipe for cell in cells)
    lines = drop_missing(
        dotted_line(
            name, [(cell.paper_epsilon, cell.epsilon) for cell in cells if cell.recipe == name and cell.paper_epsilon]
        )
        for name in recipes
    )
    panel = Panel("MNIST, B = 256, 20 epochs", "ε claimed by the limit theorem", "true ε (PLD)", lines, diagonal=True)
    subtitle = "Dashed: where claim and price agree. Above it the claim promises more than is true."
    return line_chart("What the limit theorem claims, and what it costs", subtitle, [panel]) if lines else None


def _fall(run: RunResult, role: str) -> float | None:
    ratio = setting(run, role, "ratio")
    return 1 / ratio if isinstance(ratio, float | int) and ratio else None
