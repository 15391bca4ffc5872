"""From the gradients of a user's records to one vector, which is clipped as a whole.

A record that cannot be evaluated adds nothing to the vector of its user. A user of whom no record can be evaluated adds nothing to any
release, as if the user were not there: a vector of zeros would still be counted, and would not be zero in a frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apportion.curator.clipping import Gradients, Rows, as_gradients, flatten_rows, pooling_factors
from apportion.curator.owners import Numbers
from apportion.curator.problems import NOT_FINITE, Problems
from apportion.devices import with_float64
from apportion.releases import ClippedSum


@dataclass(frozen=True, eq=False)
class UserVectors:
    """The vectors of some users.

    Args:
        users: their numbers.
        usable: of whom a record could be evaluated.
        rows: for each trained parameter (users, *shape of the parameter), in float64.
    """

    users: Numbers
    usable: NDArray[np.bool_]
    rows: Rows

    def __getitem__(self, part: slice) -> UserVectors:
        return UserVectors(self.users[part], self.usable[part], {name: row[part] for name, row in self.rows.items()})

    def followed_by(self, other: UserVectors) -> UserVectors:
        """These vectors and those of the next micro-batch, whose first user may be our last."""
        if not len(self.users):
            return other
        if self.users[-1] == other.users[0]:
            rows = {name: torch.cat([row[:1] + self.rows[name][-1:], row[1:]]) for name, row in other.rows.items()}
            usable = np.append(other.usable[:1] | self.usable[-1:], other.usable[1:])
            return self[:-1].followed_by(UserVectors(other.users, usable, rows))
        return UserVectors(
            np.append(self.users, other.users),
            np.append(self.usable, other.usable),
            {name: torch.cat([self.rows[name], row]) for name, row in other.rows.items()},
        )

    def present(self) -> tuple[Rows, Numbers]:
        """The vectors of those who contribute, and their numbers."""
        usable = torch.from_numpy(self.usable)
        return {name: row[usable.to(row.device)] for name, row in self.rows.items()}, self.users[self.usable]


NOBODY = UserVectors(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool), {})


def pool(
    gradients: Gradients | Rows,
    names: Sequence[str],
    sums: Sequence[ClippedSum],
    owners: Numbers,
    weights: Tensor,
    problems: Problems | None = None,
) -> UserVectors:
    """Σ_i w_i·g_i over the records of each user, in the order of their first record; each g_i is cut first (`pooling_factors`).

    Args:
        names: of the trained parameters.
        sums: for which the vectors will be clipped.
        owners: of each record.
        weights: w_i.
        problems: is told how many records are not finite.
    """
    records = as_gradients(gradients)
    factors = pooling_factors(records, sums)
    finite = factors.isfinite()
    evaluated = np.ones(len(owners), dtype=bool)
    if not bool(finite.all()):
        evaluated = np.array([bool(one) for one in finite])  # one by one: behind seals there is no other way
        records.zero_records(~finite)
        if problems is not None:
            problems.count(NOT_FINITE, int((~evaluated).sum()))
    weights = torch.where(finite, factors * weights.to(factors.device), 0.0)
    users = np.array(list(dict.fromkeys(owners.tolist())), dtype=np.int64)
    member = owners == users[:, None]  # (users, records)
    usable: NDArray[np.bool_] = (member & evaluated).any(axis=1)
    if len(users) == 1:  # nothing has to be written out
        whole = records.weighted_sums(dict.fromkeys(names, weights))
        return UserVectors(
            users, usable, {name: with_float64(whole[name]).to(torch.float64).unsqueeze(0) for name in names}
        )
    matrix = torch.from_numpy(member).to(weights.device) * weights
    rows = {}
    for name in names:
        written = records.rows(name, slice(0, len(owners)))
        rows[name] = (matrix @ with_float64(flatten_rows(written)).to(torch.float64)).reshape(
            len(users), *written.shape[1:]
        )
    return UserVectors(users, usable, rows)
