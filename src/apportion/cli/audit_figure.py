"""The statistical audit as a page that needs no network: the scores of the canaries, and the lower bounds beside the claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from apportion.audit.verdict import AuditResult
from apportion.reporting.drawing import make_page_figure, write_page
from apportion.reporting.formatting import format_epsilon
from apportion.reporting.palette import FAILED, INK, PASSED, choose_colour

_SHOWN = 8.0  # how far from the median scores are drawn, in multiples of their middle half


def write_audit(result: AuditResult, out: Path) -> Path:
    """Draw `result`. If clipping fails, scores are huge: those beyond the drawn range stand in its outermost bars."""
    title = (
        f"Audit: {result.verdict} at {result.confidence:.0%} confidence<br><sup>{result.canaries:,} canaries, {result.steps} steps "
        f"with q = {result.sample_rate:g}. A passed audit is not a proof.</sup>"
    )
    panels = ("scores of the canaries", f"ε at δ = {result.delta:g}")
    figure = make_page_figure(title, panels, widths=(0.6, 0.4))
    _draw_scores(figure, result, {"row": 1, "col": 1})
    _draw_bounds(figure, result, {"row": 1, "col": 2})
    figure.update_layout(barmode="overlay", bargap=0.4)
    return write_page(figure, out, "out")


def _draw_scores(figure: Any, result: AuditResult, place: dict[str, int]) -> None:
    scores = np.array(result.members + result.others)
    lower, middle, upper = np.quantile(scores, (0.25, 0.5, 0.75))
    reach = _SHOWN * (upper - lower)
    low, high = max(scores.min(), middle - reach), min(scores.max(), middle + reach)
    for name, values, number in (("not in the data", result.others, 1), ("in the data", result.members, 0)):
        counts, edges = np.histogram(np.clip(values, low, high), bins=80, range=(low, high))
        bars = {"x": (edges[:-1] + edges[1:]) / 2, "y": counts, "width": np.diff(edges)}
        marker = {"color": choose_colour(number), "opacity": 0.55, "line": {"width": 0}}
        figure.add_bar(**bars, name=name, marker=marker, **place)
    threshold = float(np.clip(result.threshold, low, high))
    figure.add_vline(x=threshold, line_dash="dash", annotation_text="threshold", **place)
    figure.update_xaxes(title="log-likelihood ratio, summed over the steps", **place)
    figure.update_yaxes(title="canaries", **place)


def _draw_bounds(figure: Any, result: AuditResult, place: dict[str, int]) -> None:
    view = "Gaussian view" if result.gaussian_is_exact else "Gaussian view<br>(heuristic)"
    bars = {view: result.gaussian_epsilon, "one run": result.one_run_epsilon}
    figure.add_bar(
        x=list(bars),
        y=list(bars.values()),
        text=[f"≥ {value:.3f}" for value in bars.values()],
        marker={"color": FAILED if result.exceeded else PASSED},
        showlegend=False,
        **place,
    )
    claim = f"claimed: ≤ {format_epsilon(result.claimed_epsilon)}"
    figure.add_hline(y=result.claimed_epsilon, line={"color": INK, "dash": "dash"}, annotation_text=claim, **place)
    figure.update_yaxes(title="lower bound", rangemode="tozero", **place)
