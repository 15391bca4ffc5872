"""Three ways to let people with larger budgets teach more (Boenisch et al. 2023, "Have it your way"): copies, weights, or more turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from apportion.accounting.gaussian import gaussian_mu
from apportion.budget import Group
from apportion.errors import InvalidArgument
from apportion.teachers.ensemble import Ensemble, divide_seats
from apportion.validate import Checked, checked, instance_of, one_of, whole

By = Literal["epsilon", "mu"]
_BY = "it is what a group's influence is proportional to: its ε, or the μ that ε buys"


class Variant(Protocol):
    """Arranges teachers and votes from public facts alone."""

    def arrange(self, groups: Sequence[Group], delta: float, teachers: int) -> Ensemble: ...


@dataclass(frozen=True)
class Upsampling(Checked):
    """A record of group j is in u_j different teachers, u_j ∝ ε_j; all votes count 1. One record moves s = u_j votes.

    The u_j are the whole numbers up to `most_copies` whose ratios are nearest to those of the budgets. (The paper divides the rounded
    budgets by their greatest common divisor: budgets of 0.69 and 1.39 would mean 69 and 139 copies.) What rounding gives a group too
    much, its filter takes back: the run stops before a budget is exceeded. With f = Σ_j r_j·u_j, the number of teachers, σ, σ₁ and the
    threshold are multiplied by f, which keeps the number of records that a teacher has.

    Args:
        most_copies: the largest u_j.
        by: "mu" has all groups reach their budgets together: a Gaussian's price in μ grows with s, and ε is no multiple of μ.

    Examples:
        >>> import apportion as ap
        >>> groups = ap.Budget.of_groups({"a": (1.0, 0.5), "b": (2.0, 0.3), "c": (5.0, 0.2)}, delta=1e-5, unit=ap.Record()).groups
        >>> ensemble = ap.teachers.Upsampling().arrange(groups, 1e-5, teachers=50)
        >>> ensemble.copies, ensemble.scale, ensemble.teachers
        ((1, 2, 5), 2.1, 105)
    """

    prefix = "variant"
    most_copies: int = checked(5, whole, "it is the largest number of copies of a record")
    by: By = checked("epsilon", one_of("epsilon", "mu"), _BY)

    def arrange(self, groups: Sequence[Group], delta: float, teachers: int) -> Ensemble:
        amounts = _amounts(groups, delta, self.by)
        copies = approximate_ratios(amounts, self.most_copies)
        scale = math.fsum(group.share * count for group, count in zip(groups, copies, strict=True))
        count = round(scale * teachers)
        if max(copies) > count:
            reason = f"a record would be copied to {max(copies)} different teachers, and there are {count}"
            raise InvalidArgument("teachers", teachers, reason, "Use more teachers, or a smaller most_copies")
        everyone = (tuple(range(count)),) * len(groups)
        return Ensemble(tuple(groups), everyone, copies, *_alike(count), scale=scale)


@dataclass(frozen=True)
class Weighting(Checked):
    """Each teacher has records of one budget, and its vote counts w_j = k·ε_j/Σ_i n_i·ε_i, n_i the number of teachers of group i. s = w_j.

    The weights of all k teachers add up to k. (The paper's normaliser leaves out n_i: of two equal groups the weights would add up to
    k²/2.) Groups with equal budgets share their teachers; if all are equal, every vote counts 1.

    Args:
        size_weighted: the paper's rule, w_j ∝ n_j·ε_j, with the right normaliser: a group counts more because it is large, so budgets are
            not reached together.
        by: "mu" has all groups reach their budgets together.

    Examples:
        >>> import apportion as ap
        >>> groups = ap.Budget.of_groups({"strict": (1.0, 0.5), "loose": (2.0, 0.5)}, delta=1e-5, unit=ap.Record()).groups
        >>> ensemble = ap.teachers.Weighting().arrange(groups, 1e-5, teachers=6)
        >>> [round(weight, 3) for weight in ensemble.weights]
        [0.667, 0.667, 0.667, 1.333, 1.333, 1.333]
    """

    prefix = "variant"
    size_weighted: bool = checked(False, instance_of(bool), "it is a choice", "Use True or False")
    by: By = checked("epsilon", one_of("epsilon", "mu"), _BY)

    def arrange(self, groups: Sequence[Group], delta: float, teachers: int) -> Ensemble:
        seats, counts, classes = _seats(groups, teachers)
        wanted = _amounts(classes, delta, self.by)
        if self.size_weighted:
            wanted = [amount * count for amount, count in zip(wanted, counts, strict=True)]
        total = math.fsum(amount * count for amount, count in zip(wanted, counts, strict=True))
        weights = [
            teachers * amount / total for amount, count in zip(wanted, counts, strict=True) for _ in range(count)
        ]
        ones, zeros = (1.0,) * teachers, (0.0,) * teachers
        return Ensemble(tuple(groups), seats, (1,) * len(groups), tuple(weights), ones, zeros)


@dataclass(frozen=True)
class Vanishing(Checked):
    """Each teacher has records of one budget, and votes, with weight 1, in a share ε_j/max ε of the queries. s = 1 there and 0 elsewhere.

    Whose turn it is follows from numbers alone (`Ensemble.votes`): the turns of one teacher are spread evenly, and those of a group's
    teachers are shifted against each other, so that every query has about the same number of votes. Each teacher has an account of its
    own; a group's ε is the largest of its teachers'. σ, σ₁ and the threshold are multiplied by the mean share.

    Args:
        by: "mu" has all groups reach their budgets together; shares are then (μ_j/max μ)², because μ² adds up over queries.

    Examples:
        >>> import apportion as ap
        >>> groups = ap.Budget.of_groups({"strict": (1.0, 0.5), "loose": (2.0, 0.5)}, delta=1e-5, unit=ap.Record()).groups
        >>> ensemble = ap.teachers.Vanishing().arrange(groups, 1e-5, teachers=4)
        >>> [list(map(int, ensemble.votes(query))) for query in range(3)]
        [[0, 1, 1, 1], [1, 0, 1, 1], [0, 1, 1, 1]]
    """

    prefix = "variant"
    by: By = checked("epsilon", one_of("epsilon", "mu"), _BY)

    def arrange(self, groups: Sequence[Group], delta: float, teachers: int) -> Ensemble:
        seats, counts, classes = _seats(groups, teachers)
        amounts = _amounts(classes, delta, self.by)
        shares = [(amount / max(amounts)) ** (2 if self.by == "mu" else 1) for amount in amounts]
        rates = [share for share, count in zip(shares, counts, strict=True) for _ in range(count)]
        offsets = [
            place / count if share < 1 else 0.0
            for share, count in zip(shares, counts, strict=True)
            for place in range(count)
        ]
        scale = math.fsum(rates) / teachers
        return Ensemble(
            tuple(groups), seats, (1,) * len(groups), (1.0,) * teachers, tuple(rates), tuple(offsets), scale
        )


def approximate_ratios(amounts: Sequence[float], largest: int) -> tuple[int, ...]:
    """Whole numbers from 1 to `largest` whose ratios are nearest to those of `amounts` (by the worst logarithm); the smallest such."""
    top = max(amounts)

    def candidate(most: int) -> tuple[int, ...]:
        return tuple(max(1, round(amount / top * most)) for amount in amounts)

    def error(most: int) -> float:
        ratios = zip(candidate(most), amounts, strict=True)
        return round(max(abs(math.log(count / most / (amount / top))) for count, amount in ratios), 9)

    return candidate(min(range(1, largest + 1), key=lambda most: (error(most), most)))


def _amounts(groups: Sequence[Group], delta: float, by: By) -> list[float]:
    return [group.epsilon if by == "epsilon" else gaussian_mu(group.epsilon, delta) for group in groups]


def _alike(teachers: int) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """Weights, rates and offsets of teachers whose votes all count 1."""
    return (1.0,) * teachers, (1.0,) * teachers, (0.0,) * teachers


def _seats(groups: Sequence[Group], teachers: int) -> tuple[tuple[tuple[int, ...], ...], list[int], list[Group]]:
    """The teachers of each group, how many each *budget* has, and one group of each. Groups with equal budgets share their teachers."""
    budgets = sorted({group.epsilon for group in groups})
    if len(budgets) > teachers:
        reason = f"each teacher has records of one budget, and there are {len(budgets)}"
        raise InvalidArgument("teachers", teachers, reason, "Use at least one teacher for each group")
    shares = [math.fsum(group.share for group in groups if group.epsilon == budget) for budget in budgets]
    counts = divide_seats(teachers, shares)
    places = [range(sum(counts[:number]), sum(counts[: number + 1])) for number in range(len(counts))]
    seats = tuple(tuple(places[budgets.index(group.epsilon)]) for group in groups)
    return seats, counts, [Group(str(budget), budget, share) for budget, share in zip(budgets, shares, strict=True)]
