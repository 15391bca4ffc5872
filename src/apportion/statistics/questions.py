"""The questions: `count`, `mean`, `histogram` and `quantile` of a column, each ε-DP, each charged before its noise is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from apportion import validate
from apportion.budget import Budget, Record, require_budget
from apportion.errors import InvalidArgument
from apportion.statistics.charging import Receipt, charge
from apportion.statistics.column import (
    GRID,
    Bounds,
    Column,
    Outside,
    from_grid,
    keep_within,
    read_bounds,
    read_column,
    to_grid,
)
from apportion.statistics.noisy_sums import Estimate, Whole, draw_sample, estimate_sums
from apportion.statistics.personal import Adaptive, Exponential, Method, Partition, Plain, Sample, pay
from apportion.statistics.ranked import Law, personal_count_law, personal_median_law, quantile_law
from apportion.statistics.roster import NOBODY, Roster, read_roster
from apportion.statistics.statistic import Statistic
from apportion.training.storage import Storage


class Terms(TypedDict, total=False):
    """What every question takes beside its own arguments.

    budget: `apportion.Budget`. Its ε is spent; the mechanisms are pure and use no δ.
    labels: the group of each record, by name or number, for a budget with groups (`Budget.of_groups`); by default the budget's. Public.
    epsilons: or an ε for each record, at most the budget's; with groups it is rounded down to theirs. Public.
    method: for budgets that differ: `Sample`, `Partition`, `Adaptive` or `Exponential`.
    storage: the ledger of the data set, as a path or `apportion.Storage(ledger=...)`; or a new folder for a ledger of its own; in memory
        otherwise.
    seed: for tests. The answer is then not private.
    pooled: declare that the column has one value for each user, pooled from that user's records, for a budget with unit=apportion.User().
    """

    budget: Budget
    labels: Any
    epsilons: Any
    method: Method | Exponential | None
    storage: Storage | str | Path | None
    seed: int | None
    pooled: bool


@dataclass(frozen=True, eq=False)
class _Asked:
    """A question whose terms are in order, and how it is paid."""

    of: str
    budget: Budget
    roster: Roster
    method: Method | Exponential
    storage: Storage | str | Path | None
    seed: int | None

    def charge(self) -> tuple[Receipt, dict[str, float]]:
        """Pay; returns the receipt and what each group pays."""
        whole = dict(zip(self.roster.names, self.roster.epsilons, strict=True))
        paid = whole if isinstance(self.method, Exponential) else pay(self.method.parts(self.roster), self.roster)
        return charge(self.of, self.roster.largest, self.budget, self.storage, self.seed), paid

    def answer(
        self,
        value: float | tuple[float, ...],
        scale: float,
        error: float | None,
        receipt: Receipt,
        paid: dict[str, float],
    ) -> Statistic:
        return Statistic(self.of, value, scale, error, self.roster.largest, paid, receipt.left, receipt.private)


_SUMS = (Sample, Partition, Adaptive)


def _ask(of: str, records: int, terms: Terms, methods: tuple[type, ...]) -> _Asked:
    unknown = set(terms) - set(Terms.__annotations__)
    if unknown:
        name = min(unknown)
        validate.known(name, name, Terms.__annotations__, "there is no such argument")
    budget = require_budget("budget", terms.get("budget"))
    if type(budget.unit) is not Record and terms.get("pooled") is not True:
        reason = "a statistic protects single values; somebody with several of them would be protected less"
        fix = "Use unit=apportion.Record(), on a column with one value for each person, or pool the values and say pooled=True"
        raise InvalidArgument("budget.unit", budget.unit.name, reason, fix)
    epsilons = terms.get("epsilons")
    labels = terms.get("labels") if epsilons is not None else terms.get("labels", budget.labels)
    roster = read_roster(budget, records, labels, epsilons)
    personal = labels is not None or epsilons is not None
    method = terms.get("method")
    names = ", ".join(kind.__name__ for kind in methods)
    allowed = (*methods, Method) if Partition in methods else methods  # one's own, where any parts will do
    if personal and not isinstance(method, allowed):
        reason = f"a {of} with several budgets needs a method: {names}"
        raise InvalidArgument("method", validate.shown(method), reason, f"Try {methods[0].__name__}()")
    if not personal and method is not None:
        raise InvalidArgument("method", method, "there is one ε for all", "Pass labels or epsilons, or leave it out")
    return _Asked(of, budget, roster, method or Plain(), terms.get("storage"), terms.get("seed"))


def _sums(asked: _Asked, contributions: Whole, sensitivity: int) -> tuple[Estimate, float, Receipt, dict[str, float]]:
    """The estimated sums, the scale of the noise on the noisiest of their parts, and the receipt."""
    method = asked.method
    assert isinstance(method, Method)
    receipt, paid = asked.charge()
    estimate = estimate_sums(contributions, sensitivity, asked.roster, method, receipt.draw)
    scale = max(sensitivity / part.epsilon for part in method.parts(asked.roster))
    return estimate, scale, receipt, paid


def _plain(value: float) -> float:
    """A whole number as it is."""
    return int(value) if value == int(value) else value


def count(data: Any, *, bounds: Bounds | None = None, **terms: Unpack[Terms]) -> Statistic:
    """How many records have a value; with bounds, one that lies within them. c + discrete Laplace noise of scale 1/ε.

    One record moves c by 1, so it is ε-DP, exactly: the noise is drawn in whole numbers (`discrete_noise.py`). The answer may be negative.
    (Dwork et al. 2006; Ghosh et al. 2009 for whole numbers; Jorgensen et al. 2015 for several budgets.)

    Args:
        data: a column of numbers. NaN is nobody's value.
        bounds: count values in low ≤ x ≤ high only.
        terms: `budget`; `labels` or `epsilons` with `method`; `storage`; `seed`.

    Examples:
        >>> import apportion as ap
        >>> budget = ap.Budget(epsilon=1.0, delta=1e-6, unit=ap.Record())
        >>> ages = [23.0, 35.0, 64.0, 71.0, 68.0]
        >>> found = ap.statistics.count(ages, bounds=(60, 120), budget=budget)
        >>> found.epsilon, round(found.standard_error, 2), found.private
        (1.0, 1.36, True)
    """
    values = read_column(data)
    kept = values if bounds is None else keep_within(values, read_bounds(bounds), "drop")
    asked = _ask("count", len(values), terms, (*_SUMS, Exponential))
    counted = ~np.isnan(kept)
    if isinstance(asked.method, Exponential):
        return _select(asked, personal_count_law(counted, asked.roster), 0)
    estimate, scale, receipt, paid = _sums(asked, counted[:, None], 1)
    value = float(estimate.totals[0])
    return asked.answer(_plain(value), scale, _count_error(estimate, value), receipt, paid)


def _count_error(estimate: Estimate, value: float) -> float:
    return math.sqrt(estimate.noise_variance + estimate.sampling_factor * max(value, 0.0))


def histogram(
    data: Any,
    *,
    edges: Sequence[float] | None = None,
    classes: Sequence[float] | None = None,
    outside: Outside = "clip",
    **terms: Unpack[Terms],
) -> Statistic:
    """How many values lie in each bin, or are each class. Discrete Laplace noise of scale 1/ε on every count.

    A record is in one bin at most, so all counts together move by 1: ε-DP, whatever the number of bins. `class_weights` makes weights of
    it. (Dwork et al. 2006.)

    Args:
        data: a column of numbers. NaN is nobody's value.
        edges: of the bins, ascending; bin j is e_j ≤ x < e_{j+1}, and the last one holds its upper edge too.
        classes: or the values to count. Declared: classes that were looked up in the data would tell which occur.
        outside: of the edges: "clip" puts a value into the first or last bin, "drop" leaves it out. What is no class is left out.
        terms: `budget`; `labels` or `epsilons` with `method`; `storage`; `seed`.

    Examples:
        >>> import apportion as ap
        >>> budget = ap.Budget(epsilon=20.0, delta=1e-6, unit=ap.Record())
        >>> ap.statistics.histogram([0.5, 1.5, 1.7, 9.0], edges=[0, 1, 2], budget=budget, seed=0).value
        (1, 3)
    """
    values = read_column(data)
    if (edges is None) == (classes is None):
        raise InvalidArgument("edges", edges, "the edges of bins or a list of classes are needed", "Pass one of them")
    if classes is not None:
        places = values[:, None] == _read_numbers("classes", classes)
    else:
        places = _place(values, _read_numbers("edges", edges), outside)
    asked = _ask("histogram", len(values), terms, _SUMS)
    estimate, scale, receipt, paid = _sums(asked, places, 1)
    totals = [float(one) for one in estimate.totals]
    error = _count_error(estimate, max(totals))
    return asked.answer(tuple(map(_plain, totals)), scale, error, receipt, paid)


def _read_numbers(argument: str, numbers: Any) -> Column:
    """Two or more, all different; edges also ascending."""
    try:
        found = np.array(list(numbers), dtype=np.float64)
    except (TypeError, ValueError):
        found = np.empty(0)
    ordered = found if argument == "edges" else np.sort(found)
    if found.ndim != 1 or len(found) < 2 or not np.isfinite(found).all() or not (np.diff(ordered) > 0).all():
        reason = "it must be two or more different, finite numbers" + (", ascending" if argument == "edges" else "")
        raise InvalidArgument(argument, validate.shown(numbers), reason, f"Try {argument}=[0, 1, 2]")
    return found


def _place(values: Column, edges: Column, outside: Outside) -> NDArray[np.bool_]:
    """Which bin each value is in, as a row of truth values; none for NaN."""
    kept = keep_within(values, (float(edges[0]), float(edges[-1])), outside)
    place = np.minimum(np.searchsorted(edges, kept, side="right") - 1, len(edges) - 2)
    return np.asarray((place[:, None] == np.arange(len(edges) - 1)) & ~np.isnan(kept)[:, None])


def mean(data: Any, *, bounds: Bounds, outside: Outside = "clip", **terms: Unpack[Terms]) -> Statistic:
    """The mean of values clipped to declared bounds: low + (high − low)·A/(A + B) from two noisy sums.

    With u = (x − low)/(high − low), a record adds u to A = Σu and 1 − u to B = Σ(1 − u): together always 1. So one ε pays for both, with
    noise of scale 1/ε on each, and A + B estimates the number of records, which is not declared. u is rounded to 2⁻²⁰ and the noise drawn
    in whole numbers: ε-DP, exactly. Half the variance of a noisy sum and a noisy count with ε/2 each.

    Args:
        data: a column of numbers. NaN is nobody's value.
        bounds: (low, high), declared. Bounds looked up in the data would tell its extremes; `quantile` finds some privately.
        outside: "clip" moves a value to the closer bound, "drop" leaves it out.
        terms: `budget`; `labels` or `epsilons` with `method`; `storage`; `seed`.

    Examples:
        >>> import apportion as ap
        >>> budget = ap.Budget(epsilon=1.0, delta=1e-6, unit=ap.Record())
        >>> found = ap.statistics.mean([30.0] * 5000 + [50.0] * 5000, bounds=(0, 100), budget=budget)
        >>> abs(found.value - 40.0) < 0.5
        True
    """
    bounds = read_bounds(bounds)
    values = keep_within(read_column(data), bounds, outside)
    asked = _ask("mean", len(values), terms, _SUMS)
    there = ~np.isnan(values)
    upper = to_grid(values, bounds)
    contributions = np.stack([upper, GRID - upper], axis=1) * there[:, None]
    estimate, scale, receipt, paid = _sums(asked, contributions, GRID)
    part, error = _ratio(estimate)
    low, high = bounds
    return asked.answer(low + (high - low) * part, scale / GRID, (high - low) * error, receipt, paid)


def _ratio(estimate: Estimate) -> tuple[float, float]:
    """A/(A + B), kept in [0, 1], and its standard error to first order; ½ ± ½ if there seems to be less than one record."""
    above, below = (float(one) / GRID for one in estimate.totals)
    records = above + below
    if records < 1:
        return 0.5, 0.5
    part = min(max(above / records, 0.0), 1.0)
    noise = (part**2 + (1 - part) ** 2) * estimate.noise_variance / GRID**2 / records**2
    sampling = part * (1 - part) * estimate.sampling_factor / records  # values vary at most as if each were 0 or 1
    return part, min(math.sqrt(noise + sampling), 0.5)


def quantile(
    data: Any, level: float = 0.5, *, bounds: Bounds, outside: Outside = "clip", **terms: Unpack[Terms]
) -> Statistic:
    """A value with about the part `level` of all values below it, by the exponential mechanism on a grid of 2²⁰ cells between the bounds.

    P[r] ∝ exp(−ε·u(r)/(2·max(q, 1 − q))), u = max(|below r| − q·m, |above r| − (1 − q)·m, 0). One record moves u by at most max(q, 1 − q),
    so it is ε-DP; probabilities are float64. An interval between two values is drawn, then a place of the grid in it, uniformly.
    (Smith 2011; McSherry and Talwar 2007; Jorgensen et al. 2015 for several budgets.)

    Args:
        data: a column of numbers. NaN is nobody's value.
        level: q, strictly between 0 and 1; 0.5 is the median.
        bounds: (low, high) of possible answers, declared.
        outside: "clip" moves a value to the closer bound, "drop" leaves it out.
        terms: `budget`; `labels` or `epsilons` with `method` (`Sample`, or `Exponential` for the median); `storage`; `seed`.

    Examples:
        >>> import apportion as ap
        >>> budget = ap.Budget(epsilon=1.0, delta=1e-6, unit=ap.Record())
        >>> found = ap.statistics.quantile(range(1000), 0.9, bounds=(0, 1000), budget=budget)
        >>> 850 < found.value < 950
        True
    """
    fix = "Use 0.5 for the median"
    level = validate.in_open_unit("level", level, "it is the part of the values that lies below", fix)
    bounds = read_bounds(bounds)
    values = keep_within(read_column(data), bounds, outside)
    asked = _ask("quantile", len(values), terms, (Sample, Exponential))
    there, positions, roster = ~np.isnan(values), to_grid(values, bounds), asked.roster
    if isinstance(asked.method, Exponential):
        if level != 0.5:
            reason = "the personalised exponential mechanism is exact for the median only"
            raise InvalidArgument("level", level, reason, "Use level=0.5, or the method Sample()")
        there &= roster.level != NOBODY
        return _select(asked, personal_median_law(positions[there], roster.level[there], roster), bounds)
    (part,) = asked.method.parts(roster)
    receipt, paid = asked.charge()
    chosen = draw_sample(part, roster, receipt.draw.coins) & there
    found = quantile_law(positions[chosen], level, part.epsilon).draw(receipt.draw.noise)
    scale = 2 * max(level, 1 - level) / part.epsilon
    return asked.answer(from_grid(found, bounds), scale, None, receipt, paid)


def _select(asked: _Asked, law: Law, bounds: Bounds | int) -> Statistic:
    """Draw from a law of the personalised exponential mechanism: a place between bounds, or a count."""
    receipt, paid = asked.charge()
    found = law.draw(receipt.draw.noise)
    value = found if isinstance(bounds, int) else from_grid(found, bounds)
    return asked.answer(value, 2 / min(asked.roster.epsilons), None, receipt, paid)
