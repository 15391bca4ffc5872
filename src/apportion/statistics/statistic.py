"""What a question about a column gives back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from apportion.errors import InvalidArgument


@dataclass(frozen=True)
class Statistic:
    """A released answer. Everything in it may be published.

    Args:
        of: which question.
        value: the answer; of a histogram one for each bin or class.
        scale: of the noise: b of the discrete Laplace on each released sum (the largest one if there are several), in records; of a
            quantile, or a personalised exponential mechanism, in ranks: e^{−ranks/scale} is how much less likely an answer is.
        standard_error: by noise and sampling, computed from public facts and the answer itself; `None` where it depends on the data.
        epsilon: what was charged: for everybody.
        paid: ε of each group, for data sets that differ in one of its members.
        left: ε that the data set's ledger has left; `None` without a limit.
        private: `False` if a seed made the noise predictable.
        classes: the texts that `value` counts, of `categories`.
        delta: δ that was charged besides; 0 of all but `categories`.
    """

    of: str
    value: float | tuple[float, ...]
    scale: float
    standard_error: float | None
    epsilon: float
    paid: Mapping[str, float]
    left: float | None = None
    private: bool = True
    classes: tuple[str, ...] = ()
    delta: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        content: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return content


def class_weights(counts: Statistic) -> tuple[float, ...]:
    """n/(k·n_c) for each of the k classes of a histogram: rare classes weigh more. Costs nothing: only the released counts are used.

    Counts below 1, which noise can make, are taken as 1.

    Examples:
        >>> import apportion as ap
        >>> budget = ap.Budget(epsilon=20.0, delta=1e-6, unit=ap.Record())
        >>> labels = [0] * 30 + [1] * 10
        >>> counts = ap.statistics.histogram(labels, classes=[0, 1], budget=budget, seed=0)
        >>> [round(weight, 2) for weight in ap.statistics.class_weights(counts)]
        [0.67, 2.0]
    """
    if not isinstance(counts.value, tuple):
        raise InvalidArgument("counts", counts.of, "it has no classes", "Pass what histogram gave back")
    known = [max(1.0, one) for one in counts.value]
    return tuple(sum(known) / (len(known) * one) for one in known)
