"""What an accuracy costs: at which step a series first reaches it, after how many epochs, for which ε.

The reader chooses the accuracy, so the page does the looking-up; this is the data that it looks up in.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from apportion.report import words
from apportion.report.curves import Point, curve, measured_accuracy
from apportion.report.series import Series


def reach(series: Sequence[Series], colours: Mapping[str, int]) -> dict[str, Any] | None:
    """For each series the reported steps with the mean accuracy over seeds, as the page shows them.

    Only steps at which every seed was measured count: a mean over fewer seeds could be above the mean over all of them by chance.
    """
    found = []
    for one in series:
        points = curve(one.runs, measured_accuracy)
        whole = [point for point in points if point.seeds == max(point.seeds for point in points)]
        if whole:
            found.append((one, whole))
    if not found:
        return None
    best = [max(point.mean for point in points) for _, points in found]
    return {
        "start": math.floor(1000 * statistics.median_low(best)) / 10,
        "low": max(0, math.floor(100 * min(best)) - 20),  # below that, every series is on its first climb
        "high": math.ceil(100 * max(best)),
        "rows": [
            {
                "label": one.label,
                "slot": colours.get(one.recipe, 0),
                "private": one.status != "none",
                "best": words.percent(max(point.mean for point in points)),
                "points": [_shown(one, point) for point in points],
            }
            for one, points in found
        ],
    }


def _shown(one: Series, point: Point) -> dict[str, Any]:
    """ε and epochs are written here, where the rules for rounding are."""
    rate = next(iter(one.numbers("sample_rate")), None)
    return {
        "accuracy": point.mean,
        "spent": point.epsilon,
        "step": words.count(point.step),
        "epochs": words.DASH if rate is None else words.epochs(point.step * rate),
        "epsilon": "no privacy" if one.status == "none" else words.epsilon(point.epsilon),
    }
