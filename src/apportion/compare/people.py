"""What an experiment file or a command line may say about people: groups with budgets of their own, and users."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from apportion import validate
from apportion.budget import UNITS, Budget, Group, Selector, Unit, User
from apportion.errors import InvalidArgument

if TYPE_CHECKING:
    from apportion.compare.resolve import Subject
    from apportion.planning import Plan

KINDS = {"uniform": "Uniform", "sample": "Sample", "scale": "Scale"}
"""The people strategies by what they are called on the command line."""
_FORM = "EPSILON:SHARE or NAME:EPSILON:SHARE"


class GroupChoice(BaseModel):
    """One group; as a text "1.0:0.34", or "strict:1.0:0.34"."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str | None = None
    epsilon: float
    share: float

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        *name, epsilon, share = value.split(":") if value.count(":") in (1, 2) else ("", "", "")
        try:
            return {"epsilon": float(epsilon), "share": float(share)} | ({"name": name[0]} if name else {})
        except ValueError:
            reason = f"it is not of the form {_FORM}"
            raise InvalidArgument("group", value, reason, "Try --group strict:1.0:0.34") from None

    def group(self) -> Group:
        return Group(f"{self.epsilon:g}" if self.name is None else self.name, self.epsilon, self.share)


class PeopleSettings(BaseModel):
    """Whom a guarantee protects, and whether some ask for more than others.

    Args:
        unit: "record" or "user".
        group: the groups, each with its ε and its share of the population.
        people: how they are treated: "uniform", "sample" or "scale".
        group_labels: a file with the group of each record; `group_column` names an input that holds it.
        user_ids, user_column: likewise whose each record is; "writers" of a data set that knows them.
        k_max, pooling, coins: as of `User`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    unit: str | None = None
    group: tuple[GroupChoice, ...] = ()
    people: str | None = None
    group_labels: Path | None = None
    group_column: str | None = None
    user_ids: Path | None = None
    user_column: str | None = None
    k_max: int | None = Field(default=None)
    pooling: str | None = None
    coins: str | None = None

    def declared_unit(self) -> Unit:
        """The unit of privacy."""
        kind = UNITS[validate.known("unit", str(self.unit), UNITS)]
        said = {name: getattr(self, name) for name in ("k_max", "pooling", "coins") if getattr(self, name) is not None}
        if kind is User:
            return User(**said)
        for name in (*said, "user_ids", "user_column"):
            if getattr(self, name) is not None:
                reason = "it is about the records of a user, and the unit of privacy is the record"
                raise InvalidArgument(name, str(getattr(self, name)), reason, "Pass --unit user, or leave it out")
        return kind()

    def group_budget(self, delta: float, epsilon: float | None) -> Budget | None:
        """The budget of the groups; `None` if there are none."""
        if not self.group:
            for name in ("people", "group_labels", "group_column"):
                if getattr(self, name) is not None:
                    reason = "it is about groups with budgets of their own, and there are none"
                    raise InvalidArgument(
                        name, str(getattr(self, name)), reason, "Pass --group strict:1.0:0.34 and others"
                    )
            return None
        if epsilon is not None:
            raise InvalidArgument("epsilon", epsilon, "the groups have their own", "Leave it out, or leave out --group")
        return Budget.of_groups([one.group() for one in self.group], delta=delta, unit=self.declared_unit())

    def own(self, plan: Plan, subject: Subject) -> Plan:
        """The plan with whose each record is, and in which group."""
        ids = labels = None
        if plan.budget.groups and plan.budget.labels is None:
            labels = _selector("group", self.group_labels, self.group_column, subject)
        if isinstance(plan.budget.unit, User):
            ids = _selector("user", self.user_ids, self.user_column, subject)
        return plan if ids is None and labels is None else plan.with_owners(ids=ids, labels=labels)


def _selector(what: str, path: Path | None, column: str | None, subject: Subject) -> Selector:
    file, name = ("group_labels", "group_column") if what == "group" else ("user_ids", "user_column")
    if what == "user" and path is None and (owners := _table_owners(column, subject)) is not None:
        return owners
    if (path is None) == (column is None):
        reason = f"one of --{file.replace('_', '-')} and --{name.replace('_', '-')} must say it of every record"
        raise InvalidArgument(file, None if path is None else str(path), reason, "Pass one of the two")
    if path is not None:
        return read_entries(file, path)
    assert column is not None
    if column == "writers" and subject.writers is not None:
        writers: list[int] = subject.writers.tolist()
        return writers
    return int(column) if column.isdecimal() else column


def _table_owners(column: str | None, subject: Subject) -> Selector | None:
    """Whose each record of a table is, by the column that its schema names."""
    if subject.encoding is None or subject.table is None:
        return None
    unit = subject.encoding.schema.unit
    if unit is None or column not in (None, unit):
        reason = "in a table the schema names the column that says whose each record is"
        raise InvalidArgument(
            "user_column", column, reason, 'Write unit = "patient" into the schema, or pass --user-ids'
        )
    return subject.table.owners


def read_entries(argument: str, path: Path) -> list[Any]:
    """One entry for each record: the lines of a text file, or a NumPy array (.npy)."""
    import numpy as np

    readers: dict[str, Callable[[], list[Any]]] = {
        ".npy": lambda: np.load(path, allow_pickle=False).ravel().tolist(),
    }
    try:
        read = readers.get(path.suffix, lambda: _lines(path.read_bytes()))
        return read()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is neither text in UTF-8 nor an array"
        raise InvalidArgument(argument, str(path), f"it cannot be read: {reason}", "Write one entry a line") from None


def _lines(content: bytes) -> list[str]:
    """The lines of a text, each read by itself: one that is not UTF-8, or holds another separator, does not change the others."""
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return [line.decode("utf-8", "replace").strip() for line in lines[: -1 if not lines[-1] else None]]
