"""The results in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from apportion.report import words
from apportion.report.series import Experiment, Series, accuracy

CLOSE = 0.01


def of_experiment(experiment: Experiment) -> list[str]:
    """One sentence for each budget; of an experiment without any private run, one about the best of them."""
    data = {words.text(run.get("data")) for run in experiment.runs} - {""}
    where = f" on {data.pop()}" if len(data) == 1 else ""
    free = [one for one in experiment.series if one.epsilon is None and one.accuracy is not None]
    sentences = []
    for target, rivals in experiment.contests().items():
        best = max(rivals, key=accuracy)
        remarks = [f"the highest of {len(rivals)} recipes"] if len(rivals) > 1 else []
        if free:
            gap = round(100 * (accuracy(best) - max(map(accuracy, free))), 1)
            side = "level with" if gap == 0 else f"{abs(gap):.1f} points {'below' if gap < 0 else 'above'}"
            remarks.append(f"{side} non-private training")
        spent = words.epsilon(best.epsilon) if target is None else f"{target:g}"
        reached = f"At ε = {spent}, {best.recipe} reached {words.percent(best.accuracy)}{where}"
        sentences.append(", ".join([reached, " and ".join(remarks)] if remarks else [reached]) + ".")
    if not sentences and free:
        best = max(free, key=accuracy)
        sentences.append(f"Without privacy, {best.recipe} reached {words.percent(best.accuracy)}{where}.")
    return sentences


def of_all(experiments: Sequence[Experiment]) -> list[str]:
    """How the results compare with the paper's, where its figures are known; otherwise what came out of each experiment."""
    series = [one for experiment in experiments for one in experiment.series]
    sentences = _against_paper(series)
    if not sentences:
        several = len(experiments) > 1
        sentences = [f"{one.name}: {said}" if several else said for one in experiments for said in of_experiment(one)]
    return sentences or ["No test accuracy was measured."]


def _against_paper(series: Sequence[Series]) -> list[str]:
    gaps = [
        round(one.accuracy - one.paper_accuracy, 3)  # as it is shown
        for one in series
        if one.accuracy is not None and one.paper_accuracy is not None and not one.above_claim
    ]
    if not gaps:
        return []
    above, below = sum(gap > CLOSE for gap in gaps), sum(gap < -CLOSE for gap in gaps)
    close = len(gaps) - above - below
    said = f"{close} of {len(gaps)} accuracies are within one point of the published figure"
    others = [f"{count} {side}" for count, side in ((above, "above"), (below, "below")) if count]
    sentences = [f"{said}{', ' + ' and '.join(others) if others else ''}."]
    claims = [one for one in series if one.epsilon is not None and one.paper_epsilon is not None]
    if claims:
        over = sum(one.above_claim for one in claims)
        sentences.append(
            f"The true ε is above the claimed one in {over} of {len(claims)} results."
            if over
            else f"The true ε is at or below the claimed one in all {len(claims)} results."
        )
    return sentences
