"""A comparison as a table for other programs: CSV with full precision, or LaTeX as a paper prints it. One row for each series."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from apportion.errors import InvalidArgument
from apportion.reporting.result import Results
from apportion.reporting.series import Experiment, Series, group_experiments

COLUMNS = (
    *("experiment", "recipe", "data", "model", "unit", "population", "sample_rate", "steps", "runs", "private"),
    *("target_epsilon", "epsilon", "delta", "metric", "score", "score_std", "score_error"),
)
_LATEX = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "ε": r"$\varepsilon$",
    "δ": r"$\delta$",
    "ρ": r"$\rho$",
    "σ": r"$\sigma$",
    "α": r"$\alpha$",
    "η": r"$\eta$",
    "μ": r"$\mu$",
    "±": r"$\pm$",
    "−": r"$-$",
    "·": r"$\cdot$",
    "×": r"$\times$",
    "–": "--",
    "\u00a0": "~",
    **{digit: f"$_{number}$" for number, digit in enumerate("₀₁₂₃₄₅₆₇₈₉")},
}
_SPECIAL = re.compile("|".join(map(re.escape, _LATEX)))


def require_suffix(argument: str, path: Path, known: Sequence[str]) -> str:
    """The suffix of `path` in small letters; refused if it is not one of those that are `known`."""
    suffix = path.suffix.lower()
    if suffix not in known:
        reason = f"a file that ends in {suffix!r} cannot be written" if suffix else "its name has no suffix"
        raise InvalidArgument(argument, str(path), reason, f"End it in {' or '.join(known)}")
    return suffix


def export_csv(results: Results) -> str:
    """One line for each series, numbers as they are; what is missing is empty. A seeded run says `private` False."""
    written = io.StringIO()
    writer = csv.DictWriter(written, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for experiment in group_experiments(results.runs):
        writer.writerows(_row(experiment, one) for one in experiment.series)
    return written.getvalue()


def export_latex(results: Results) -> str:
    """A `tabular` with the rules of booktabs: one part for each experiment, the best score of each budget bold.

    ε is rounded up, as everywhere. Runs with a seed are marked: their ε protects nobody.
    """
    lines = [r"% \usepackage{booktabs}", r"\begin{tabular}{lrrr}", r"\toprule"]
    lines.append(r"recipe & $\varepsilon$ & $\delta$ & test score \\")
    for experiment in group_experiments(results.runs):
        winners, measure = experiment.winners(), experiment.measure
        name = f"{experiment.name}: {measure.title if measure.held_out else measure.name}{', %' if measure.in_percent else ''}"
        lines += [r"\midrule", rf"\multicolumn{{4}}{{l}}{{{escape_latex(name)}}} \\"]
        lines += [_latex_row(one, one.label in winners) for one in experiment.series]
    lines += [r"\bottomrule", r"\end{tabular}"]
    if any(one.status == "seeded" for experiment in group_experiments(results.runs) for one in experiment.series):
        lines.append(r"% $^*$ a seed made the noise predictable: the run is reproducible and not private")
    return "\n".join([*lines, ""])


def escape_latex(text: str) -> str:
    """`text` as LaTeX prints it: special characters and the letters of formulas."""
    return _SPECIAL.sub(lambda found: _LATEX[found.group()], " ".join(text.split()))


EXPORTS = {".csv": export_csv, ".tex": export_latex}


def _row(experiment: Experiment, one: Series) -> dict[str, Any]:
    first = one.runs[0]
    return {
        "experiment": experiment.name,
        "recipe": one.recipe,
        "data": first.data,
        "model": first.model,
        "unit": first.unit,
        "population": first.population,
        "sample_rate": first.sample_rate,
        "steps": first.steps,
        "runs": len(one.runs),
        "private": one.status == "private",
        "target_epsilon": one.target,
        "epsilon": one.epsilon,
        "delta": first.delta,
        "metric": one.measure.title if one.measure.held_out else one.measure.name,
        "score": one.score,
        "score_std": one.deviation,
        "score_error": one.spread if one.measure.held_out else None,
    }


def _latex_row(one: Series, best: bool) -> str:
    from apportion.reporting.formatting import format_delta, format_epsilon

    score = _latex_number(one, one.score)
    score = rf"\textbf{{{score}}}" if best else score
    score += "" if one.spread is None else rf" $\pm$ {_latex_number(one, one.spread)}"
    spent = "no privacy" if one.epsilon is None else format_epsilon(one.epsilon)
    spent += r"$^*$" if one.status == "seeded" else ""
    mantissa, _, power = format_delta(one.runs[0].delta).partition("10")
    exponent = power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
    delta = "--" if not exponent else f"{escape_latex(mantissa)}$10^{{{exponent}}}$"
    return rf"{escape_latex(one.recipe)} & {spent} & {delta} & {score} \\"


def _latex_number(one: Series, value: float | None) -> str:
    """A score, or how far scores differ: accuracy in percent, anything else as it is."""
    return "--" if value is None else f"{100 * value:.2f}" if one.measure.in_percent else f"{value:.4g}"
