"""The noisy score of records that were held out, as documents say it: with its standard error, or that it is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apportion.reporting.measures import Measure
from apportion.reporting.result import as_number

LARGEST_ERROR = 0.1
"""A score whose standard error is this part of its range, or more, says nothing, and is not shown as one."""


@dataclass(frozen=True)
class HeldOutScore:
    """One noisy number about records that were held out of training.

    Args:
        measure: what it is.
        value, error: it, and its standard error; `None` if none was told.
        useful: whether the error is small enough for the score to say anything.
        epsilon: what it cost.
    """

    measure: Measure
    value: float | None
    error: float | None
    useful: bool
    epsilon: float

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> HeldOutScore | None:
        """That of a statement, or of the details of a run; `None` if nothing was held out."""
        held = facts.get("holdout")
        if not isinstance(held, Mapping):
            return None
        value, error, epsilon = (as_number(held.get(name)) for name in ("value", "standard_error", "epsilon"))
        useful = held.get("useful") is True and value is not None and error is not None
        return cls(Measure.of({**held, "holdout": held}), value, error, useful, epsilon or 0.0)

    @property
    def score(self) -> float | None:
        """The value, if it says anything."""
        return self.value if self.useful else None

    def describe(self) -> str:
        """The score in words."""
        price = f"for ε = {self.epsilon:g} of the total"
        if self.value is None or self.error is None:
            return f"No score of the held-out records was told ({price})"
        shown = self.measure.show_error(self.error)
        if not self.useful:
            return (
                f"No score: the noise on that of the held-out records is too large to say anything (standard error {shown}, {price}); more "
                "records, a larger part of them (--holdout) or of ε (--holdout-epsilon) make it smaller"
            )
        score = f"{self.measure.name} {self.measure.show(self.value, 2)} ± {shown} (standard error)"
        return f"Noisy score of held-out records: {score}, {price}"
