"""Whether the records of a run can be used at all: a noisy count in its first steps, and when it is too low.

A record whose label is outside of the classes, or whose loss is not finite, contributes nothing, and nobody may be told of it. If all
records are such, the whole budget is spent on noise. So the first requests of a plan also ask for Σ_i (u_i − ½) over the batch, u_i = 1
for a record that contributes (`UsableCount`), with a small share of their price; ε stays the same. The sum is released, so the run may
stop by it.

Let K steps be counted, B units be expected in a batch, and s = z/(2·√w) be the noise of one count with the share w. If half of the records
or more are usable, the K sums together have a mean of 0 or more and a variance of at most V = K·(s² + B/4). The run stops if they are below
−4·√V, which then has a probability of about 3·10⁻⁵. If no record is usable, their mean is −K·B/2; K is chosen so that this is 7·√V below 0,
and is seen with a probability of 99.9 %. Where the sums are below a quarter of K·B, as if a quarter of the records failed, or half as many
were there as declared, the run goes on and warns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from apportion.errors import UnusableRecords
from apportion.validate import Checked, check, in_open_unit, whole

DEVIATIONS, POWER = 4.0, 3.0
"""How far below 0 the count must be to stop a run, and how much farther it is expected where nothing is usable."""
SHARE = 0.01
"""w: the noise of a gradient grows by half a percent in the steps that count."""
LENGTHS = (3, 5, 10, 20, 50, 100)
"""Numbers of steps that are tried, until one suffices."""
FEW, SURE = 0.75, 3.0
"""A run warns if about this part of the records, or less, is usable, by so many standard deviations."""


_CAUSES = (
    "Likely causes: class numbers that do not run from 0 to classes-1 (1 and 2 instead of 0 and 1), another column than the label, NaN or "
    "infinite inputs, inputs that are not scaled, a Dataset that raises, numbers of a table with a decimal comma or a category spelled "
    "otherwise than the schema has it."
)
_OVER_DECLARED = (
    "The share is computed with the declared population: if that is far larger than the number of records, it lies close to 50 % whatever "
    "can be used (declare a public figure that is closer)."
)
_EXACT = "Exact counts for the owner of the data, not to be published:"


@dataclass(frozen=True)
class UsableCheck(Checked):
    """The first `steps` requests of a plan also count the usable records, each with a share of its price.

    Args:
        steps: K. After so many the run goes on or stops; later ones do not count.
        share: w. The noise of the gradient grows by 1/√(1−w) in these steps.

    Examples:
        >>> from apportion.usable import UsableCheck
        >>> UsableCheck.affordable([1.0] * 1000, batch=600.0)
        UsableCheck(steps=3, share=0.01)
    """

    prefix = "usable"
    steps: int = field(metadata=check(whole, "it is a number of steps", "Try 2"))
    share: float = field(metadata=check(in_open_unit, "the gradient and the count both need noise", "Try 0.01"))

    @classmethod
    def affordable(cls, multipliers: Sequence[float], batch: float) -> UsableCheck | None:
        """The shortest check that sees a run without usable records; `None` if every one would cost too much.

        Args:
            multipliers: z_1..z_T.
            batch: B, the expected number of units in a batch, or what they weigh.
        """
        for steps in LENGTHS:
            if steps > len(multipliers):
                return None
            allowed = steps * batch**2 / (4 * (DEVIATIONS + POWER) ** 2) - batch / 4  # of the variance s²
            if max(multipliers[:steps]) ** 2 / (4 * SHARE) <= allowed:
                return cls(steps, SHARE)
        return None


@dataclass
class UsableTally:
    """What was counted so far: released values and public facts."""

    total: float = 0.0
    variance: float = 0.0
    weight: float = 0.0

    def add(self, noisy_sum: float, deviation: float, weight: float, largest: float) -> None:
        """One count.

        Args:
            deviation: s, of its noise.
            weight: B, what is expected in a batch.
            largest: the weight of one unit, at most.
        """
        self.total += noisy_sum
        self.variance += deviation**2 + weight * largest / 4
        self.weight += weight

    @property
    def fraction(self) -> float | None:
        """About how many of the records contribute; `None` if nothing was counted."""
        return min(1.0, max(0.0, 0.5 + self.total / self.weight)) if self.weight else None

    @property
    def too_few(self) -> bool:
        """Whether fewer than half contribute, with high confidence."""
        return self.total < -DEVIATIONS * math.sqrt(self.variance)

    @property
    def rather_few(self) -> bool:
        """Whether clearly fewer than three in four contribute, of as many as were declared."""
        return bool(self.weight) and self.total + SURE * math.sqrt(self.variance) < (FEW - 0.5) * self.weight

    def warning(self, where: str | None) -> str:
        """What is said of a run that goes on although many records do not contribute."""
        return (
            f"By a noisy count about {self.fraction or 0:.0%} of the records can be used; the others contribute nothing, or there are "
            f"fewer than the declared population. {_CAUSES} {_OVER_DECLARED}" + (f" {_EXACT} {where}" if where else "")
        )

    def refusal(self, steps: int, left: int, epsilon: float, where: str | None) -> UnusableRecords:
        """Why the run stops, and what may be the matter.

        Args:
            steps: that were counted.
            left: that can still be taken.
            epsilon: of the whole plan.
            where: the file with exact counts.
        """
        return UnusableRecords(
            f"The run has stopped after {steps} steps: by a noisy count about {self.fraction or 0:.0%} of the records can be used, "
            "with high confidence fewer than half, and the rest of the budget would be spent on noise. The others cannot be read or "
            f"evaluated, have values outside of the declared domain, or a gradient that is not finite. {_CAUSES} {_OVER_DECLARED} "
            f"The guarantee is that of the whole plan, ε = {epsilon:.4g}; the {left} steps left can only be spent by resuming this run."
            + (f" {_EXACT} {where}" if where else "")
        )
