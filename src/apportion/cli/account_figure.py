"""What a plan by the central limit really costs: the comparison of Du et al., figure 4, as a page that needs no network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from plotly import graph_objects

from apportion.accounting.comparisons import compare_plans
from apportion.report.figure_page import write_page

PLANNED = tuple(float(epsilon) for epsilon in np.round(np.geomspace(0.1, 4.0, 20), 4))
_SCALE = 1.6  # the highest ε shown at first, in multiples of the largest plan; looser accountants lie above, zoom out to see them


def write_plans(out: Path, *, sample_rate: float, steps: int, delta: float) -> Path:
    """Draw, for constant noise that the central limit plans for ε between 0.1 and 4, what every accountant says it costs."""
    plans = compare_plans(sample_rate, steps, delta, PLANNED)
    figure = graph_objects.Figure()
    for index, first in enumerate(plans[0][1]):
        rows = [comparisons[index] for _, comparisons in plans]
        figure.add_scatter(
            x=[planned for planned, _ in plans],
            y=[row.epsilon for row in rows],
            name=first.name,
            mode="lines+markers" if index == 0 else "lines",
            line={"dash": "solid" if first.upper_bound else "dot", "color": None if first.upper_bound else "#c0392b"},
            hovertemplate=f"%{{y:.4f}} ({first.standing})",
        )
    figure.update_layout(
        title=f"Constant noise, planned by the central limit: q = {sample_rate:.4g}, {steps:,} steps, δ = {delta:g}",
        xaxis={"title": "planned ε (central limit, not an upper bound)", "range": [0, 4.05]},
        yaxis={"title": "ε by each accountant", "range": [0, _SCALE * 4.0]},
        hovermode="x unified",
        template="plotly_white",
    )
    return write_page(figure, out, "figure")
