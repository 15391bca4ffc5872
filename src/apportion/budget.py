"""What is to be protected and how well: the budget, the unit of privacy, and data declared public."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from apportion.errors import InvalidArgument
from apportion.validate import (
    DELTA,
    Checked,
    check,
    checked,
    in_open_unit,
    instance_of,
    known,
    one_of,
    positive,
    probability,
    shown,
    whole,
)


@dataclass(frozen=True)
class Record:
    """The unit of privacy is one record: one row of the training data.

    Neighbouring data sets differ by adding or removing one record. If a person owns several records, the guarantee for the
    person is weaker than the one stated for a record.
    """

    name = "record"
    neighbours = "add or remove one record"
    coins_per_unit = 1


Selector = Callable[[Any, Any], Any] | Sequence[Any] | str | int
"""What tells something of every record: a value for each in an array, the name or number of one of its inputs, or a function of its inputs
and target."""


@dataclass(frozen=True)
class User(Checked):
    """The unit of privacy is one user, with all records that the user has.

    The records of a user that are in a batch are one vector, which is clipped to C as a whole. With `User`, population and sampling rate
    count users.

    Args:
        ids: whose each record is: an array with one entry for each record, the name or number of one of the inputs, or a function of a
            record's inputs and target. It is used where the records are, and never written to a plan. A record whose owner is not
            known (None, NaN, or a function that fails) is not used; whether there is one is never said.
        k_max: how many records of a user are used at most. Of a user with more, those with the smallest keyed hash of the user's name and
            their place among the user's own records; whether there is such a user is never said.
        pooling: "mean" or "sum" of the gradients of a user's records, before clipping. Each of them is cut at 64 thresholds first: what
            is left when huge ones cancel is rounding, which the other users of a micro-batch could move.
        coins: "user": one coin for each user, with probability q, and then all of the records. "record": one coin for each record, with
            probability q; a user is then in a batch with probability up to 1 − (1 − q)^k_max, and that is the rate that is paid for.

    Guarantee: adding or removing all records of one user moves a clipped sum by at most C, and a count by ½.
    """

    name = "user"
    neighbours = "add or remove all records of one user"
    prefix = "unit"
    ids: Selector | None = field(default=None, compare=False, repr=False)
    k_max: int | None = checked(None, whole, "it is a number of records")
    pooling: str = checked("mean", one_of("mean", "sum"), "the records of a user are pooled in one of two ways")
    coins: str = checked("user", one_of("user", "record"), "coins are tossed for users or for records")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.coins == "record" and self.k_max is None:
            reason = "with coins for records the price of a user depends on how many of them the user has"
            raise InvalidArgument(
                "unit.k_max", None, reason, "Declare k_max=, the most records of a user that are used"
            )

    @property
    def coins_per_unit(self) -> int:
        """How many coins of a draw may belong to one user."""
        return 1 if self.coins == "user" else self.k_max or 1

    def describe(self) -> dict[str, Any]:
        """What is public of it."""
        return {"k_max": self.k_max, "pooling": self.pooling, "coins": self.coins}


Unit = Record | User
UNITS: Mapping[str, type[Record] | type[User]] = {Record.name: Record, User.name: User}
"""The units of privacy by name."""


def _read_unit(argument: str, value: Any, why: str, fix: str) -> Any:
    if type(value) not in UNITS.values():  # a subclass is a unit that nobody executes
        raise InvalidArgument(argument, shown(value), why, fix)
    return value


def _read_name(argument: str, value: Any, why: str, fix: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidArgument(argument, shown(value), f"it must be a text, because {why}", fix)
    return value


@dataclass(frozen=True)
class Group(Checked):
    """People who ask for the same ε. Who belongs to which group, each budget and each share are public, declared facts.

    Args:
        name: by which the group is asked for.
        epsilon: ε_p, the budget of each of its members.
        share: r_p, the declared part of the population that is in it.
    """

    prefix = "group"
    name: str = field(metadata=check(_read_name, "the group is asked for by it", 'Try name="strict"'))
    epsilon: float = field(metadata=check(positive, "it is the privacy loss that a member allows", "Try epsilon=1.0"))
    share: float = field(
        metadata=check(probability, "it is the declared part of the population in the group", "Leave empty groups out")
    )


@dataclass(frozen=True, kw_only=True)
class Budget(Checked):
    """The guarantee asked for: (ε, δ)-differential privacy for one unit.

    For all neighbouring data sets D, D′ and every set S of results: P[M(D) ∈ S] ≤ e^ε · P[M(D′) ∈ S] + δ.

    Nothing has a default: how much privacy to give up, and whose, is the decision of the person who trains.

    Args:
        epsilon: ε; with groups the largest of theirs, which holds for everybody.
        delta: δ, the same for all.
        unit: whom the guarantee protects.
        groups: with budgets of their own (`of_groups`). For data sets that differ in a member of group p, ε_p holds.
        labels: the group of each record, by its name, or by its place from 0 if no group is called by a number; as `ids` of `User`. Not
            part of a plan.

    Examples:
        >>> import apportion as ap
        >>> ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())
        Budget(epsilon=3.0, delta=1e-05, unit=Record())
    """

    epsilon: float = field(metadata=check(positive, "it is the privacy loss to be spent", "Try epsilon=3.0"))
    delta: float = field(metadata=check(in_open_unit, *DELTA))
    unit: Unit = field(
        metadata=check(
            _read_unit,
            "it must say whom the guarantee protects; a guarantee for a row is not one for a person with many rows",
            "Pass unit=apportion.Record() to protect single records, or apportion.User(ids) to protect whoever owns them",
        )
    )
    groups: tuple[Group, ...] = field(default=(), repr=False)
    labels: Selector | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.groups) is not tuple or not all(type(group) is Group for group in self.groups):
            raise InvalidArgument(
                "groups", shown(self.groups), "it is not a tuple of Group", "Use apportion.Budget.of_groups"
            )
        if not self.groups:
            return
        names, shares = [group.name for group in self.groups], [group.share for group in self.groups]
        if len(set(names)) != len(names):
            raise InvalidArgument("groups", names, "two groups have one name", "Give each a name of its own")
        if not math.isclose(math.fsum(shares), 1.0, abs_tol=1e-6):
            reason = f"the shares add up to {math.fsum(shares):.6g}, and everybody is in one group"
            raise InvalidArgument("groups", shares, reason, "Declare shares that add up to 1")
        if self.epsilon != max(group.epsilon for group in self.groups):
            reason = "it must be the largest of the groups' budgets, which holds for everybody"
            raise InvalidArgument("epsilon", self.epsilon, reason, "Use apportion.Budget.of_groups")

    @classmethod
    def of_groups(
        cls,
        groups: Mapping[str, tuple[float, float]] | Sequence[Group],
        *,
        delta: float,
        unit: Unit,
        labels: Selector | None = None,
        sensitive: bool = False,
    ) -> Budget:
        """A budget for each group, from {name: (ε_p, share of the population)}. (Boenisch et al. 2023, individualised DP.)

        Args:
            sensitive: whether a budget tells something about whoever asked for it ("she asked for little, so she has something to hide").
                Such budgets are refused: rates, thresholds and noise are chosen from them, and would tell of them.

        Examples:
            >>> import apportion as ap
            >>> groups = {"strict": (1.0, 0.34), "medium": (2.0, 0.43), "loose": (3.0, 0.23)}
            >>> budget = ap.Budget.of_groups(groups, delta=1e-5, unit=ap.Record())
            >>> budget.epsilon, [group.name for group in budget.groups]
            (3.0, ['strict', 'medium', 'loose'])
        """
        if sensitive:
            raise InvalidArgument(
                "sensitive",
                sensitive,
                "rates, thresholds and noise are chosen from the budgets, so everything that is released would tell of them",
                "Use one epsilon for everybody, the smallest: apportion.Budget(epsilon=...)",
            )
        declared = tuple(groups) if not isinstance(groups, Mapping) else tuple(_read_groups(groups))
        if not declared or not all(isinstance(group, Group) for group in declared):
            raise InvalidArgument("groups", shown(groups), "it holds no groups", 'Pass {"strict": (1.0, 0.5), ...}')
        epsilon = max(group.epsilon for group in declared)
        return cls(epsilon=epsilon, delta=delta, unit=unit, groups=declared, labels=labels)

    def group_number(self, name: str) -> int:
        """The place of a group, by its name."""
        names = [group.name for group in self.groups]
        if not names:
            raise InvalidArgument("group", shown(name), "the budget is the same for everybody", "Leave it out")
        return names.index(known("group", name, names, "there is no such group"))

    def warn_if_weak(self, population: float) -> None:
        """Warn when δ > 1/population: publishing one whole record at random would satisfy such a guarantee."""
        if self.delta > 1 / population:
            warnings.warn(
                f"delta={self.delta:g} is larger than 1/population={1 / population:.2g}, with population={population:g}: publishing "
                f"one record chosen at random would satisfy it. Use a tenth of 1/population or less: delta={0.1 / population:.1g}.",
                UserWarning,
                stacklevel=3,
            )


def _read_groups(groups: Mapping[str, tuple[float, float]]) -> list[Group]:
    try:
        return [Group(name, *values) for name, values in groups.items()]
    except TypeError:
        reason = "each group needs its epsilon and its share of the population"
        raise InvalidArgument("groups", shown(dict(groups)), reason, 'Pass {"strict": (1.0, 0.5), ...}') from None


def require_budget(argument: str, value: object) -> Budget:
    """Return `value` if it is a budget."""
    fix = "Pass apportion.Budget(epsilon=3.0, delta=1e-5, unit=apportion.Record())"
    budget: Budget = instance_of(Budget)(argument, value, "it is not a Budget", fix)
    return budget


@dataclass(frozen=True)
class Public:
    """Data declared to need no protection at all.

    Evaluation, search, validation and probes accept nothing else. A held-out part of the private records is *not* public,
    unless whoever owns those records says that anything about them may be published.
    """

    data: Any
