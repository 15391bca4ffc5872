"""Which texts are frequent in a column, when nobody can list them in advance: a noisy histogram that leaves out small counts.

**The mechanism.** c(x) counts the records with text x. For every x with c(x) > 0 draw X with P[X = k] ∝ e^{−ε|k|}, and release the pair
(x, c(x) + X) if c(x) + X ≥ τ, where τ is the smallest whole number with P[1 + X ≥ τ] = e^{−ε(τ−1)}/(1 + e^{−ε}) ≤ δ.

**It is (ε, δ)-DP** for data sets that differ in one record. *Proof.* Let D′ have one record more than D, with the text x. All other counts
are the same, and their releases are independent of that of x. If c(x) ≥ 1 in D, the release of x is a function of a whole number that one
record moves by 1, plus discrete Laplace noise of scale 1/ε: the ratio of the probabilities is at most e^ε. If c(x) = 0 in D, x is never
released there, and in D′ with probability P[1 + X ≥ τ] ≤ δ; given that it is not, both releases have the same law. So the probability of
any set of results differs by at most δ then. ∎ (Korolova et al. 2009; Bun, Nissim and Stemmer 2016; Vadhan 2017, theorem 3.5.)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from apportion.budget import Budget, Record, require_budget
from apportion.curator.foreign_code import contain_errors, watch_signals
from apportion.curator.randomness import Stream
from apportion.errors import InvalidArgument
from apportion.statistics.charging import charge
from apportion.statistics.discrete_noise import discrete_laplace_variance, draw_discrete_laplace
from apportion.statistics.roster import EVERYBODY
from apportion.statistics.statistic import Statistic
from apportion.training.storage import Storage

_UP = 1 + 2.0**-40
"""Covers every rounding error in the threshold."""


def safe_threshold(epsilon: float, delta: float) -> int:
    """τ: the smallest whole number with e^{−ε(τ−1)}/(1 + e^{−ε}) ≤ δ, but at least 2."""
    steps = -(math.log(delta) + math.log1p(math.exp(-epsilon))) / epsilon
    if not steps < 2.0**53:
        reason = "the noise would be larger than any count"
        raise InvalidArgument("epsilon", epsilon, reason, "Use a larger epsilon")
    return 1 + max(1, math.ceil(steps * _UP))


def release_frequent(counts: Mapping[str, int], epsilon: float, delta: float, noise: Stream) -> dict[str, int]:
    """The texts whose noisy count reaches the threshold, with that count: (ε, δ)-DP if each record is in one count."""
    scale, threshold = 1 / Fraction(epsilon), safe_threshold(epsilon, delta)
    noisy = {text: counts[text] + draw_discrete_laplace(scale, noise) for text in sorted(counts)}
    return {text: count for text, count in noisy.items() if count >= threshold}


def count_texts(data: Iterable[Any]) -> Counter[str]:
    """How often each text occurs. What has no text, and an empty one, is nobody's value."""
    with watch_signals():
        texts = [_read_text(one) for one in data]
    return Counter(text for text in texts if text)


def _read_text(value: Any) -> str:
    with contain_errors():  # whatever a record does, the others are read
        return "" if value is None or value != value else str(value).strip()
    return ""


def categories(
    data: Iterable[Any],
    *,
    budget: Budget,
    storage: Storage | str | Path | None = None,
    seed: int | None = None,
) -> Statistic:
    """Which texts occur in a column, and how often, without a list of them: those whose noisy count reaches a threshold.

    Counts get discrete Laplace noise of scale 1/ε. A text is released if its noisy count is at least τ = 1 + ⌈ln(1/(δ(1 + e^{−ε})))/ε⌉, so
    that one which a single record has is released with probability at most δ: (ε, δ)-DP, all of the budget. The proof is in
    `thresholded.py`. (Korolova et al. 2009; Vadhan 2017, theorem 3.5.)

    Args:
        data: one text for each record; None, NaN and an empty text are nobody's value.
        budget: its ε and its δ are spent. One ε for all; the unit is the record.
        storage: the ledger of the data set, as a path or `apportion.Storage(ledger=...)`; in memory otherwise.
        seed: for tests. The answer is then not private.

    Returns:
        A `Statistic` with `classes`, the texts in alphabetical order, and `value`, their noisy counts.

    Examples:
        >>> import apportion as ap
        >>> budget = ap.Budget(epsilon=1.0, delta=1e-6, unit=ap.Record())
        >>> found = ap.statistics.categories(["M"] * 400 + ["F"] * 500 + ["only once"], budget=budget)
        >>> found.classes, found.epsilon, found.delta
        (('F', 'M'), 1.0, 1e-06)
    """
    budget = require_budget("budget", budget)
    if type(budget.unit) is not Record or budget.groups:
        reason = "it protects single values, of people with one ε"
        fix = "Use Budget(..., unit=apportion.Record()), on a column with one value for each person"
        raise InvalidArgument("budget", budget, reason, fix)
    if isinstance(data, str) or not isinstance(data, Iterable):
        reason = "it is not a column of texts"
        raise InvalidArgument("data", type(data).__name__, reason, "Pass one text for each record")
    counts = count_texts(data)
    safe_threshold(budget.epsilon, budget.delta)
    receipt = charge("categories", budget.epsilon, budget, storage, seed, delta=budget.delta)
    found = release_frequent(counts, budget.epsilon, budget.delta, receipt.draw.noise)
    return Statistic(
        of="categories",
        value=tuple(found.values()),
        scale=1 / budget.epsilon,
        standard_error=math.sqrt(discrete_laplace_variance(1 / budget.epsilon)),
        epsilon=budget.epsilon,
        paid={EVERYBODY: budget.epsilon},
        left=receipt.left,
        private=receipt.private,
        classes=tuple(found),
        delta=budget.delta,
    )
