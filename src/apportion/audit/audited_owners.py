"""Whose the records of an audit are: the groups take turns in what both data sets share; the last record is of the group looked at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from apportion.budget import Budget, User
from apportion.curator.owners import Owners, RecordOwners, UserOwners

RECORDS_OF_A_USER = 2
"""The last user owns the last record so many times over: clipped one by one they would move a sum twice as far as is allowed."""


@dataclass(frozen=True)
class AuditedOwners:
    """Who owns the records of D or D′.

    Args:
        owners: of all records.
        common: coins for what both data sets share, which come first.
        copies: how often the last record is there, if it is.
    """

    owners: Owners
    common: int
    copies: int

    @classmethod
    def of(cls, budget: Budget, records: int, *, last: bool, group: int = 0) -> AuditedOwners:
        """Owners under a budget.

        Args:
            records: that both data sets share.
            last: whether there is one more.
            group: of whoever owns it.
        """
        unit, groups = budget.unit, len(budget.groups)
        if not isinstance(unit, User):
            labels = np.array([*(np.arange(records) % max(1, groups)), *[group] * last])
            return cls(RecordOwners(records + last, labels if groups else None), records, 1)
        users = -(-records // RECORDS_OF_A_USER)
        ids = [number // RECORDS_OF_A_USER for number in range(records)] + [users] * (RECORDS_OF_A_USER * last)
        labels = np.array([*(np.arange(users) % max(1, groups)), *[group] * last])
        owners = UserOwners(ids, unit, labels if groups else None)
        common = UserOwners(ids[:records], unit).coins
        return cls(owners, common, RECORDS_OF_A_USER)
