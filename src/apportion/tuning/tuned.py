"""What a search gives back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from apportion.planning import Plan
from apportion.training.run import Run
from apportion.tuning.space import shown

if TYPE_CHECKING:
    from apportion.tuning.private_search import SearchPlan

FREE = "free: public data. Nothing was charged, and nothing about the data of the trials is protected"


@dataclass(frozen=True)
class Trial:
    """One trial of a search on public data.

    Args:
        settings: the recipe and the values.
        score: of the last evaluation; the higher the better.
        pruned: whether it was given up because its first scores were below the median.
    """

    settings: Mapping[str, Any]
    score: float
    pruned: bool


@dataclass(frozen=True, eq=False, repr=False)
class Tuned:
    """The best settings of a search, and what finding them cost.

    Args:
        settings: the recipe and the values of the winner.
        score: of the winner, on the data declared public; the higher the better.
        plan: on public data, the plan of a private run with these settings and the whole budget. On private data, what the winner
            executed: its noise is larger, because the whole search shares the budget.
        run: the winner, on private data: `run.model`, `run.statement()`. `None` on public data.
        price: of the search on private data; `None` where it was free.
        trials: all trials on public data, in order. Of a search on private data nothing but the winner is known.
    """

    settings: Mapping[str, Any]
    score: float
    plan: Plan
    run: Run | None = None
    price: SearchPlan | None = None
    trials: Sequence[Trial] = ()

    @property
    def epsilon(self) -> float:
        """The ε of the search: 0 on public data."""
        return 0.0 if self.price is None else self.price.epsilon

    def statement(self) -> dict[str, Any] | None:
        """The privacy statement of the winner, with the price of the search; `None` on public data."""
        return None if self.run is None else self.run.statement()

    def best(self) -> dict[str, Trial]:
        """The best finished trial of each recipe, on public data."""
        found: dict[str, Trial] = {}
        for trial in self.trials:
            name = trial.settings["recipe"]
            if not trial.pruned and (name not in found or trial.score > found[name].score):
                found[name] = trial
        return found

    def __repr__(self) -> str:
        return f"Tuned({dict(self.settings)!r}, score={self.score:.4g}, epsilon={self.epsilon:.4g})"

    def __str__(self) -> str:
        lines = [f"best: {_settings(self.settings)}  (score {self.score:.4f})"]
        if self.price is not None:
            return "\n".join([*lines, str(self.price)])
        for name, trial in self.best().items():
            same = [one for one in self.trials if one.settings["recipe"] == name]
            pruned = sum(one.pruned for one in same)
            lines.append(
                f"{name:>12}: {trial.score:.4f}  {_settings(trial.settings)}  ({len(same)} trials, {pruned} pruned)"
            )
        return "\n".join([*lines, FREE])

    def to_json(self) -> str:
        """All of it as a text: settings, score, price, the plan, and on public data the trials."""
        content = {
            "settings": {name: shown(value) for name, value in self.settings.items()},
            "score": self.score,
            "price": FREE if self.price is None else self.price.describe(),
            "plan": json.loads(self.plan.to_json()),
            "statement": self.statement(),
            "trials": [
                {"settings": {name: shown(value) for name, value in one.settings.items()}}
                | {"score": one.score, "pruned": one.pruned}
                for one in self.trials
            ],
        }
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {shown(value)}" for name, value in settings.items())
