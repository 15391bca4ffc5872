"""From an ε for each person to groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from apportion import validate
from apportion.budget import Group
from apportion.errors import InvalidArgument


@dataclass(frozen=True, eq=False)
class Grouping:
    """Groups, and the name of the group that each record is in. For `Budget.of_groups(grouping.groups, labels=grouping.labels, …)`."""

    groups: tuple[Group, ...]
    labels: tuple[str, ...]


def group_by_epsilon(epsilons: Sequence[Any], grid: Sequence[float]) -> Grouping:
    """Put everybody into the group of the largest ε on a public grid that is not above their own. Nobody's budget is exceeded.

    Args:
        epsilons: ε of each record. They are public, and so are the shares that are counted here.
        grid: the ε of the groups.

    Examples:
        >>> import apportion as ap
        >>> grouping = ap.people.group_by_epsilon([0.7, 1.0, 1.9, 4.0], grid=[0.5, 1.0, 2.0])
        >>> [(group.name, group.share) for group in grouping.groups], grouping.labels
        ([('0.5', 0.25), ('1', 0.5), ('2', 0.25)], ('0.5', '1', '1', '2'))
    """
    why = "it is the privacy loss that somebody allows"
    values = [validate.positive("epsilons", one, why, "Leave out whoever allows none") for one in epsilons]
    steps = sorted({validate.positive("grid", one, "it is the epsilon of a group", "Try [1.0, 2.0]") for one in grid})
    if not values or not steps or min(values) < steps[0]:
        raise InvalidArgument(
            "grid",
            steps,
            f"somebody allows only {min(values, default=0):g}, and everybody needs a group that is not above their own epsilon",
            "Let the grid begin at the smallest epsilon",
        )
    chosen = [max(number for number, step in enumerate(steps) if step <= value) for value in values]
    names = {number: f"{steps[number]:g}" for number in sorted(set(chosen))}
    groups = tuple(Group(name, steps[number], chosen.count(number) / len(chosen)) for number, name in names.items())
    return Grouping(groups, tuple(names[number] for number in chosen))
