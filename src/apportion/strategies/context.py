"""The public facts that a strategy may use to decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Context:
    """Where a run stands. Every field is public: declared by a person or counted in steps.

    Args:
        step: 1-based index t of the step that is about to run.
        steps: T, how many steps the plan has.
        sample_rate: q.
        expected_batch_size: B = q·population.
        noise_multiplier: z_t of this step. A clip may use it to divide the step's budget; it is 1 while it is being solved.
        parameter_shapes: of each trained parameter, by name.
    """

    step: int
    steps: int
    sample_rate: float
    expected_batch_size: float = 1.0
    noise_multiplier: float = 1.0
    parameter_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def epoch_length(self) -> int:
        """Steps of one epoch: round(1/q)."""
        return epoch_length(self.sample_rate)

    @property
    def epoch(self) -> int:
        """1-based index of the epoch that holds this step."""
        return (self.step - 1) // self.epoch_length + 1


def epoch_length(sample_rate: float) -> int:
    """Steps after which a record has been drawn once on average: round(1/q), at least 1."""
    return max(1, round(1 / max(sample_rate, 1e-300)))  # below, 1/q would overflow
