"""What a plan by the central limit really costs: the comparison of Du et al., figure 4, as a page that needs no network."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from apportion.accounting.comparisons import compare_plans
from apportion.reporting.drawing import draw_line, make_page_figure, write_page
from apportion.reporting.palette import FAILED

PLANNED = tuple(float(epsilon) for epsilon in np.round(np.geomspace(0.1, 4.0, 20), 4))
_SCALE = 1.6  # the highest ε shown at first, in multiples of the largest plan; looser accountants lie above, zoom out to see them


def write_plans(out: Path, *, sample_rate: float, steps: int, delta: float) -> Path:
    """Draw, for constant noise that the central limit plans for ε between 0.1 and 4, what every accountant says it costs."""
    plans = compare_plans(sample_rate, steps, delta, PLANNED)
    facts = f"q = {sample_rate:.4g}, {steps:,} steps, δ = {delta:g}"
    figure = make_page_figure(f"Constant noise, planned by the central limit: {facts}")
    for index, first in enumerate(plans[0][1]):
        line = draw_line(first.name, [(planned, rows[index].epsilon) for planned, rows in plans], index)
        line.hovertemplate = f"%{{y:.4f}} ({first.standing})"
        if index == 0:
            line.mode = "lines+markers"
        if not first.upper_bound:
            line.line.update(color=FAILED, dash="dot")
        figure.add_trace(line)
    figure.update_xaxes(title="planned ε (central limit, not an upper bound)", range=[0, 4.05])
    figure.update_yaxes(title="ε by each accountant", range=[0, _SCALE * 4.0])
    return write_page(figure, out, "figure")
