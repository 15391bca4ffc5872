"""What a PATE run gives back, and its privacy statement."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apportion.accounting.account import Account
from apportion.accounting.gaussian import gaussian_epsilon
from apportion.budget import Budget
from apportion.curator.randomness import KEY_STREAM
from apportion.teachers.aggregation import Mechanism
from apportion.teachers.ensemble import Ensemble
from apportion.teachers.group_filter import GroupFilter
from apportion.training.statement import NOT_COVERED, OTHER_LEDGERS, OTHER_RUNS, data_set
from apportion.training.versions import package_versions

COVERED = (
    "the released labels, which queries were answered and how many, and so the student, at the end and however it is trained on them",
    "everything in the folder public/",
)
TEACHERS = "the teachers, their votes, and the data-dependent cost in secret/: they hold the records and never leave"
LABELS = "who belongs to which group, and the groups' budgets: they are declared public"


@dataclass(frozen=True)
class GroupSpending:
    """What a group has paid.

    Args:
        name: of the group.
        epsilon: of what was charged to its members, at the declared δ.
        budget: what it allows, which is the guarantee.
    """

    name: str
    epsilon: float
    budget: float


@dataclass(frozen=True, eq=False, repr=False)
class Taught:
    """A student, and what its teachers' people paid.

    Args:
        student: the fitted model; `None` if there were too few answers to fit one.
        student_accuracy: on the data declared public; `None` without such data or without a student.
        answers: the released labels: number of the query → class.
        queries_asked: how many queries were charged, answered or not.
        groups: what each group paid, and its budget.
        private: whether the guarantee holds: `False` if a seed made the noise predictable.
        facts: the privacy statement.
    """

    student: Any
    student_accuracy: float | None
    answers: Mapping[int, int]
    queries_asked: int
    groups: Sequence[GroupSpending]
    private: bool
    facts: Mapping[str, Any]

    @property
    def queries_answered(self) -> int:
        return len(self.answers)

    def epsilon(self, group: str | None = None) -> float:
        """ε of what was charged to a group; the largest of all if none is named."""
        return max(one.epsilon for one in self.groups if group in (None, one.name))

    def statement(self) -> dict[str, Any]:
        """The privacy statement as data."""
        return dict(self.facts)

    def to_json(self) -> dict[str, Any]:
        """The numbers of the run."""
        return {
            "student_accuracy": self.student_accuracy,
            "queries_answered": self.queries_answered,
            "queries_asked": self.queries_asked,
            "private": self.private,
            "groups": [vars(one) for one in self.groups],
        }

    def __repr__(self) -> str:
        paid = ", ".join(f"{one.name}: {one.epsilon:.4g} of {one.budget:g}" for one in self.groups)
        return f"Taught({self.queries_answered} of {self.queries_asked} queries answered, ε {{{paid}}})"


def spending(account: Account, ensemble: Ensemble) -> tuple[GroupSpending, ...]:
    """What each group has paid so far."""
    rule = account.rule
    assert isinstance(rule, GroupFilter)
    return tuple(
        GroupSpending(group.name, rule.spent_epsilon(number), group.epsilon)
        for number, group in enumerate(ensemble.groups)
    )


def state(
    budget: Budget, ensemble: Ensemble, mechanism: Mechanism, variant: Any, account: Account, private: bool
) -> dict[str, Any]:
    """The statement (privacy.json)."""
    shared = data_set(account.ledger, account.run)
    not_covered = [OTHER_LEDGERS if item is OTHER_RUNS and shared else item for item in NOT_COVERED]
    return {
        "private": private,
        "why_not_private": None if private else "a fixed seed was used: whoever knows it knows the noise",
        "method": "PATE: teachers on disjoint parts, noisy votes, a student on public inputs",
        "epsilon": budget.epsilon,
        "epsilon_spent": _price_of_charges(account),
        "delta": budget.delta,
        "unit": budget.unit.name,
        "neighbours": budget.unit.neighbours,
        "groups": [vars(one) for one in spending(account, ensemble)],
        "accountant": "Gaussian differential privacy, exact and independent of the data",
        "rule": account.rule.name,
        "validity": account.rule.validity,
        "variant": repr(variant),
        "ensemble": ensemble.describe(),
        "mechanism": mechanism.describe(),
        "charges": account.spent,
        "partition": "a keyed hash of each record, or of an id of its own, chooses its teachers",
        "ledger": "durable before each release" if account.ledger.path else "in memory only: a crash would forget it",
        "data_set": shared,
        "randomness": f"{KEY_STREAM}, 256-bit key from {'the operating system' if private else 'a fixed seed'}",
        "covered": list(COVERED),
        "not_covered": [*not_covered, TEACHERS, LABELS],
        "versions": package_versions(),
    }


def _price_of_charges(account: Account) -> float:
    """ε of what the ledger holds: for those who could move the most votes in each query."""
    counts = {} if account.run is None else account.ledger.counts(account.run)
    squared = math.fsum(count / event.noise_multiplier**2 for event, count in counts.items())
    return gaussian_epsilon(math.sqrt(squared), account.budget.delta)


def as_page(facts: Mapping[str, Any]) -> str:
    """The statement for people (privacy.md)."""
    lines = ["# Privacy statement", ""]
    if not facts["private"]:
        lines += [f"NOT PRIVATE: {facts['why_not_private']}. With secret randomness the same run would promise:", ""]
    lines += [
        "Whatever is computed from the released labels, the probability of any result changes by at most a factor e^ε (plus "
        f"δ = {facts['delta']:g}) when one {facts['unit']} of the group is added to the data or removed from it.",
        "",
        "| group | ε (guarantee) | ε of what was charged |",
        "|---|---|---|",
        *(f"| {one['name']} | {one['budget']:g} | {one['epsilon']:.4f} |" for one in facts["groups"]),
        "",
        "| | |",
        "|---|---|",
    ]
    listed = (
        "method",
        "neighbours",
        "accountant",
        "rule",
        "validity",
        "variant",
        "partition",
        "charges",
        "randomness",
        "ledger",
    )
    lines += [f"| {key} | {facts[key]} |" for key in listed]
    lines += [f"| {key} | {json.dumps(facts[key])} |" for key in ("ensemble", "mechanism", "data_set", "versions")]
    for title in ("covered", "not_covered"):
        lines += ["", f"## {title.replace('_', ' ').capitalize()}", "", *(f"- {item}" for item in facts[title])]
    return "\n".join([*lines, ""])
