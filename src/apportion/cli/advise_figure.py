"""Advice as a page that needs no network: what each ε buys, and what it leaves to an attacker."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from apportion.advice.epsilon_candidates import EPSILONS, RARELY, Advice
from apportion.advice.kept_table import kept_results
from apportion.reporting.drawing import make_page_figure, write_page
from apportion.reporting.palette import choose_colour


def write_advice(advice: Advice, out: Path) -> Path:
    """Draw `advice`: accuracy of kept results and dry runs, noise of an update, the attacker's limits, and the parts of equal runs,
    where that was asked for; all against ε."""
    sampling = advice.sampling
    title = (
        f"What ε buys: {sampling.population:,} {escape(advice.unit)}s, {sampling.steps:,} steps with batches of "
        f"{sampling.expected_batch_size:g}<br><sup>{escape(advice.delta_reason)}.<br>"
        "Kept results have populations of their own. Noise: of the mean gradient, in clip thresholds.</sup>"
    )
    panels = ["test accuracy, against ε", "noise on an update, against ε", "an attacker's limits, against ε"]
    shares = [one.shares for one in advice.candidates if one.shares is not None]
    figure = make_page_figure(title, panels + ([f"ε of each of {shares[0].runs} runs, against all"] if shares else []))
    _draw_accuracy(figure, advice)
    _draw_noise(figure, advice)
    _draw_attacker(figure, advice)
    if shares:
        _draw_shares(figure, advice)
    marked = sorted({*EPSILONS, *(one.epsilon for one in advice.candidates)})
    figure.update_xaxes(type="log", tickvals=marked, ticktext=[f"{one:g}" for one in marked])
    figure.update_yaxes(tickformat=".0%", col=1)
    figure.update_yaxes(rangemode="tozero", col=2)
    figure.update_yaxes(tickformat=".0%", range=[0, 1.02], col=3)
    return write_page(figure, out, "out")


def _draw_accuracy(figure: Any, advice: Advice) -> None:
    series: dict[str, list[tuple[float, float]]] = {}
    for one in kept_results():
        series.setdefault(f"{one.data}, {one.model}, {one.population:,} records", []).append(
            (one.epsilon, one.accuracy)
        )
    if advice.dry_run_data is not None:
        tried = [(one.epsilon, one.accuracy) for one in advice.candidates if one.accuracy is not None]
        series[f"dry run on {advice.dry_run_data}"] = tried
    for number, (name, points) in enumerate(series.items(), start=2):
        _add_line(figure, name, points, number, column=1)


def _draw_noise(figure: Any, advice: Advice) -> None:
    points = [(one.epsilon, one.noise_per_update) for one in advice.candidates]
    _add_line(figure, f"{advice.recipe}, as described", points, 0, column=2)


def _draw_attacker(figure: Any, advice: Advice) -> None:
    guesses = [(one.epsilon, one.right_guesses) for one in advice.candidates]
    by_epsilon = [(one.epsilon, one.right_guesses_by_epsilon) for one in advice.candidates]
    recognised = [(one.epsilon, one.recognised) for one in advice.candidates]
    _add_line(figure, "right guesses at most, with this noise", guesses, 0, column=3)
    _add_line(figure, "by ε and δ alone", by_epsilon, 1, column=3, dash="dot")
    _add_line(figure, f"recognised, 1 in {round(1 / RARELY):,} mistaken", recognised, 2, column=3, dash="dash")


def _draw_shares(figure: Any, advice: Advice) -> None:
    told = [(one.epsilon, one.shares) for one in advice.candidates if one.shares is not None]
    _add_line(figure, "each run, rule gaussian", [(limit, one.gaussian) for limit, one in told], 0, column=4)
    _add_line(figure, "each run, rule sum, at δ/k", [(limit, one.sum) for limit, one in told], 1, column=4, dash="dot")
    figure.update_yaxes(rangemode="tozero", col=4)


def _add_line(
    figure: Any, name: str, points: list[tuple[float, float]], colour: int, *, column: int, dash: str = "solid"
) -> None:
    line = {"color": choose_colour(colour), "dash": dash}
    x, y = [list(values) for values in zip(*sorted(points), strict=True)]
    figure.add_scatter(x=x, y=y, name=escape(name), mode="lines+markers", line=line, row=1, col=column)
