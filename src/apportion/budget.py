"""What is to be protected and how well: the budget, the unit of privacy, and data declared public."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from apportion.validate import DELTA, Checked, check, in_open_unit, instance_of, positive


@dataclass(frozen=True)
class Record:
    """The unit of privacy is one record: one row of the training data.

    Neighbouring data sets differ by adding or removing one record. If a person owns several records, the guarantee for the
    person is weaker than the one stated for a record.
    """

    name = "record"
    neighbours = "add or remove one record"


UNITS: Mapping[str, type[Record]] = {Record.name: Record}
"""The units of privacy by name."""


@dataclass(frozen=True, kw_only=True)
class Budget(Checked):
    """The guarantee asked for: (ε, δ)-differential privacy for one unit.

    For all neighbouring data sets D, D′ and every set S of results: P[M(D) ∈ S] ≤ e^ε · P[M(D′) ∈ S] + δ.

    None of the three has a default: how much privacy to give up, and whose, is the decision of the person who trains.

    Examples:
        >>> import apportion as ap
        >>> ap.Budget(epsilon=3.0, delta=1e-5, unit=ap.Record())
        Budget(epsilon=3.0, delta=1e-05, unit=Record())
    """

    epsilon: float = field(metadata=check(positive, "it is the privacy loss to be spent", "Try epsilon=3.0"))
    delta: float = field(metadata=check(in_open_unit, *DELTA))
    unit: Record = field(
        metadata=check(
            instance_of(Record),
            "it must say whom the guarantee protects; a guarantee for a row is not one for a person with many rows",
            "Pass unit=apportion.Record() to protect single records",
        )
    )

    def warn_if_weak(self, population: float) -> None:
        """Warn when δ > 1/population: publishing one whole record at random would satisfy such a guarantee."""
        if self.delta > 1 / population:
            warnings.warn(
                f"delta={self.delta:g} is larger than 1/population={1 / population:.2g}, with population={population:g}: publishing "
                f"one record chosen at random would satisfy it. Use a tenth of 1/population or less: delta={0.1 / population:.1g}.",
                UserWarning,
                stacklevel=3,
            )


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
