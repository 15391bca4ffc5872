"""The public facts of a run: how often a record is drawn, how many steps there are, what sums are divided by.

All of them come from what a person declared, never from `len(data)`: neighbouring data sets must give the same configuration,
or the configuration itself would tell whether a record is there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from apportion.errors import InvalidArgument
from apportion.strategies.context import epoch_length
from apportion.validate import Checked, check, positive, probability, whole

MOST_STEPS = 1_000_000
"""A plan holds every step. Half a million different ones are priced in seconds; far more would look like a hang."""


@dataclass(frozen=True)
class Sampling(Checked):
    """Poisson sampling of a run.

    Args:
        population: N, the declared number of records.
        sample_rate: q, the probability with which each record joins a batch.
        steps: T.
    """

    population: int = field(metadata=check(whole, "it is a number of records", "Pass a published figure"))
    sample_rate: float = field(
        metadata=check(probability, "each record is drawn with it", "Use batch_size / population")
    )
    steps: int = field(metadata=check(whole, "it is a number of updates", "Try steps=1000"))

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_few_enough("steps", self.steps, self.steps)

    @property
    def expected_batch_size(self) -> float:
        """q·N: the public constant by which noisy sums are divided."""
        return self.sample_rate * self.population

    @classmethod
    def declare(
        cls,
        *,
        population: int | None,
        batch_size: int | None = None,
        epochs: float | None = None,
        sample_rate: float | None = None,
        steps: int | None = None,
    ) -> Sampling:
        """From `batch_size` or `sample_rate`, and `epochs` or `steps`. One epoch is round(1/q) steps.

        Examples:
            >>> from apportion.sampling import Sampling
            >>> Sampling.declare(population=60_000, batch_size=600, epochs=3)
            Sampling(population=60000, sample_rate=0.01, steps=300)
        """
        if population is None:
            raise InvalidArgument(
                "population",
                None,
                "the number of records must be declared: taken from the data it would differ between neighbouring data sets",
                "Pass population=60_000, a figure that you would publish; it need not be exact",
            )
        population = whole("population", population, "it is a number of records", "Pass a published figure")
        _exactly_one("batch_size", batch_size, "sample_rate", sample_rate)
        _exactly_one("epochs", epochs, "steps", steps)
        if batch_size is not None:
            reason = "it is an expected number of records"
            batch_size = whole("batch_size", batch_size, reason, "Try batch_size=256")
            if batch_size > population:
                raise InvalidArgument(
                    "batch_size", batch_size, f"it exceeds population={population}", "Use at most the population"
                )
            sample_rate = batch_size / population
        rate = probability("sample_rate", sample_rate, "each record is drawn with it", "Use batch_size / population")
        if epochs is not None:
            positive("epochs", epochs, "it is a number of passes", "Try epochs=10")
            steps = max(1, round(min(epochs * epoch_length(rate), 2 * MOST_STEPS)))
            _require_few_enough("epochs", epochs, steps)
        return cls(population, rate, steps)  # type: ignore[arg-type]


def _require_few_enough(argument: str, value: float, steps: int) -> None:
    if steps > MOST_STEPS:
        raise InvalidArgument(
            argument,
            value,
            f"it means more than {MOST_STEPS:,} steps, each of which must be declared and priced in advance",
            "Use fewer steps, or larger batches",
        )


def _exactly_one(first: str, first_value: object, second: str, second_value: object) -> None:
    if (first_value is None) == (second_value is None):
        found = "neither was given" if first_value is None else "both were given"
        raise InvalidArgument(
            f"{first}/{second}", (first_value, second_value), found, f"Pass either {first} or {second}"
        )
