"""A plan as a small picture for notebooks: inline SVG, which needs neither a script nor a library."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from apportion.reporting.palette import COLOURS

if TYPE_CHECKING:
    from apportion.planning import Plan

WIDTH, HEIGHT, LEFT, TOP = 220, 120, 44, 24
POINTS = 200
"""Drawn of a series."""


def draw_plan(plan: Plan) -> str:
    """Three panels over the steps: ε spent, noise multiplier, clip threshold; and the facts beside them in words."""
    steps = range(1, plan.steps + 1)
    series = {
        "ε spent": plan.spending(),
        "noise multiplier": list(zip(steps, plan.multipliers, strict=True)),
        "clip threshold": list(zip(steps, plan.thresholds(), strict=True)),
    }
    panels = "".join(
        f'<g transform="translate({number * (WIDTH + LEFT + 16)},0)">{_panel(title, points, plan.steps, number)}</g>'
        for number, (title, points) in enumerate(series.items())
    )
    width, height = len(series) * (WIDTH + LEFT + 16), HEIGHT + 2 * TOP
    label = f"{plan.recipe.name}: ε spent, noise multiplier and clip threshold over {plan.steps} steps"
    return (
        f'<div><pre style="margin:0">{escape(str(plan))}</pre><svg xmlns="http://www.w3.org/2000/svg" role="img" '
        f'aria-label="{escape(label)}" viewBox="0 0 {width} {height}" width="{width}" style="max-width:100%;font:12px sans-serif" '
        f'fill="currentColor">{panels}</svg></div>'
    )


def _panel(title: str, points: Sequence[tuple[int, float]], steps: int, number: int) -> str:
    top = max(value for _, value in points) or 1.0
    thin = max(1, len(points) // POINTS)
    kept = [*points[::thin], points[-1]]

    def place(step: int, value: float) -> str:
        x = LEFT + WIDTH * (step - 1) / max(1, steps - 1)
        return f"{x:.1f},{TOP + HEIGHT * (1 - value / top):.1f}"

    line = " ".join(place(step, value) for step, value in kept)
    bottom = TOP + HEIGHT
    return (
        f'<text x="{LEFT}" y="14" font-weight="bold">{title}</text>'
        f'<path d="M{LEFT},{TOP}V{bottom}H{LEFT + WIDTH}" fill="none" stroke="currentColor" stroke-opacity="0.4"/>'
        f'<text x="{LEFT - 6}" y="{TOP + 8}" text-anchor="end">{top:.3g}</text>'
        f'<text x="{LEFT - 6}" y="{bottom}" text-anchor="end">0</text>'
        f'<text x="{LEFT}" y="{bottom + 15}">1</text>'
        f'<text x="{LEFT + WIDTH}" y="{bottom + 15}" text-anchor="end">step {steps:,}</text>'
        f'<polyline points="{line}" fill="none" stroke="{COLOURS[number + 1][0]}" stroke-width="2"/>'
    )
