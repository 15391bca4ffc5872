"""What the recipe called default reached before: a small table, made of the kept results of the reproductions.

`python -m reproduction figures --pages` writes kept_table.json from reproduction/results; a test compares them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any

FILE = "kept_table.json"


@dataclass(frozen=True)
class KeptResult:
    """The mean of several seeds of one recipe on one data set.

    Args:
        data, model, recipe: what was trained.
        population, sample_rate, steps: N, q and T.
        epsilon, delta: the budget of the runs.
        noise_multiplier: √(z_1·z_T) of its schedule.
        accuracy, deviation: the mean over seeds of the test accuracy, and its standard deviation.
        seeds: how many runs.
        study: the file in reproduction/results.

    Examples:
        >>> from apportion.advice import kept_results
        >>> {one.recipe for one in kept_results()}
        {'default'}
    """

    data: str
    model: str
    recipe: str
    population: int
    sample_rate: float
    steps: int
    epsilon: float
    delta: float
    noise_multiplier: float
    accuracy: float
    deviation: float | None
    seeds: int
    study: str

    @property
    def noise_per_update(self) -> float:
        """Standard deviation of the noise on the mean gradient of a batch, in thresholds: z/(q·N)."""
        return noise_per_update(self.noise_multiplier, self.sample_rate * self.population)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def noise_per_update(multiplier: float, expected_batch_size: float) -> float:
    """z/(q·N): how far the noise of a step moves one coordinate of the mean gradient, in thresholds."""
    return multiplier / expected_batch_size


def middle_multiplier(first: float, last: float) -> float:
    """√(z_1·z_T), the middle of a schedule that falls or grows exponentially."""
    return math.sqrt(first * last)


@cache
def kept_results() -> tuple[KeptResult, ...]:
    """The table, as it was when this version was made."""
    rows: list[Mapping[str, Any]] = json.loads(files(__package__).joinpath(FILE).read_text(encoding="utf-8"))
    return tuple(KeptResult(**row) for row in rows)
