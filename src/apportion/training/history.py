"""What a run leaves behind about its course: released values and public facts only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

REPORTS = 25
"""How often a run is looked at: the budget spent so far is priced, the model evaluated."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One step. There is no field for a raw loss, norm, count or batch size, so none can be logged.

    Args:
        step, epoch: 1-based.
        clip: the threshold of each release of the request.
        noise_multiplier: z_t; `None` for a draw that released no sum.
        learning_rate: of each parameter group of the optimiser.
        epsilon: spent up to and including this step; `None` where it was not computed.
        score: of the model on data declared public, by `metric`; `None` where it was not evaluated, or where its outputs were not numbers.
        selected: the step size that a selection released, 0 for none; `None` for a draw that selected nothing.
        group_epsilon: ε for each group of the budget, by its name; `None` without groups.
        metric: what the score is; `None` where the model was not evaluated.
    """

    step: int
    epoch: int
    clip: tuple[float, ...]
    noise_multiplier: float | None
    learning_rate: tuple[float, ...]
    epsilon: float | None = None
    score: float | None = None
    selected: float | None = None
    group_epsilon: Mapping[str, float] | None = None
    metric: str | None = None

    @property
    def test_accuracy(self) -> float | None:
        """The accuracy on data declared public; `None` where it was not measured."""
        return self.score if self.metric == "accuracy" else None

    def as_json(self) -> dict[str, Any]:
        """As it stands in history files: single values instead of lists of one, and the score under its name, as `test_accuracy`."""
        content = {key: _single(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        metric, score = content.pop("metric"), content.pop("score")
        for name in ("selected", "group_epsilon"):
            if content[name] is None:
                del content[name]
        return content | {f"test_{metric or 'accuracy'}": score}


def as_columns(entries: Sequence[Entry]) -> dict[str, list[Any]]:
    """The history of a long run, compact: one list for each field."""
    return {field.name: [getattr(entry, field.name) for entry in entries] for field in fields(Entry)}


def from_columns(columns: dict[str, list[Any]]) -> list[Entry]:
    """What `as_columns` was given."""
    return [Entry(**dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True)]


def is_report_step(step: int, steps: int) -> bool:
    """Whether a run of `steps` is looked at after `step`: the first, the last and about 25 in between."""
    return step in (1, steps) or step % max(1, steps // REPORTS) == 0


def _single(values: Sequence[float]) -> float | list[float]:
    return values[0] if len(values) == 1 else list(values)
