"""When a run has learned enough: it is stopped by its scores on data declared public, which are free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from apportion import validate
from apportion.errors import InvalidArgument
from apportion.training.evaluation import Evaluation
from apportion.validate import Checked, checked, non_negative, whole


@dataclass(frozen=True)
class EarlyStopping(Checked):
    """Stop a run after `patience` measurements in which the score was not better than the best one before them.

    With scores s_1, s_2, … for which higher is better, s_k is better if s_k > max_{j<k} s_j + `min_delta`, where the maximum is over those
    that were better in their turn; for errors, with the opposite sign. A model without a score, because it diverged, is not better.

    Args:
        patience: how many measurements (`evaluate_every`) may pass without a better one.
        min_delta: what does not count as better.

    Guarantee: the price is that of the whole plan, because who knows when a run stopped knows what was released. The unspent steps can
    only be taken by resuming this run. The weights are those of the last step.

    Source: L. Prechelt, Early Stopping – But When?, 1998 (the class UP, with a threshold).

    Examples:
        >>> import apportion as ap
        >>> stop = ap.EarlyStopping(patience=2)
        >>> stop.is_reached([0.5, 0.7, 0.69, None], "higher")
        True
        >>> stop.is_reached([0.5, 0.7, 0.69, 0.71], "higher")
        False
    """

    prefix = "stop"
    patience: int = checked(5, whole, "it is a number of measurements")
    min_delta: float = checked(0.0, non_negative, "it is by how much a score must be better")

    def is_reached(self, scores: Sequence[float | None], better: str) -> bool:
        """Whether the run is over after these scores. It follows from them alone, so that a resumed run decides likewise."""
        sign = 1 if better == "higher" else -1
        best, since = float("-inf"), 0
        for score in scores:
            since += 1
            if score is not None and (best == float("-inf") or sign * score > best + self.min_delta):
                best, since = sign * score, 0
        return since >= self.patience


def require_stoppable(stop: object, evaluation: Evaluation | None) -> None:
    """Refuse what cannot stop a run: another kind of thing, or no public data to measure by."""
    if stop is None:
        return
    if not isinstance(stop, EarlyStopping):
        reason = f"it is a {type(stop).__name__}"
        raise InvalidArgument("stop", validate.shown(stop), reason, "Pass apportion.EarlyStopping(patience=5)")
    if evaluation is None:
        reason = "there is no public data whose score could stop the run, and on private records a score is not free"
        raise InvalidArgument("stop", stop, reason, "Pass evaluate=apportion.Public(...), or leave it out")
