"""The file of a search: every candidate that was tried, the settings and, once it has ended, the thresholds.

`clip.Sequence(file=...)` reads it. Until the search has ended its list of thresholds is empty, so that no run can use half of one.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from apportion.errors import InvalidArgument
from apportion.search.search_rules import Trial, best_of
from apportion.search.search_settings import SearchSettings
from apportion.training.checkpoint import replace_file

VERSION = 1
NOTE = (
    "Found on data declared public, by the private training step with seeded noise. That has no privacy guarantee, and public data "
    "needs none."
)


@dataclass
class Trace:
    """The trials of a search in order, kept in a file that is replaced after each of them."""

    settings: SearchSettings
    path: Path | None = None
    trials: list[Trial] = field(default_factory=list)
    ended: bool = False

    @classmethod
    def open(cls, path: Path, settings: SearchSettings) -> Trace:
        """A new trace, or the one in the file if it was made under the same settings."""
        if not path.exists():
            return cls(settings, path)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            version, before = found["version"], found["settings"]
            trials = [Trial(**{**trial, "accuracy": float(trial["accuracy"])}) for trial in found["trace"]]
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            reason = f"it is no file of a search ({type(error).__name__}: {error})"
            raise InvalidArgument("out", str(path), reason, "Choose another file") from error
        if version != VERSION:
            reason = f"its format is {version!r}, this version reads {VERSION}"
            raise InvalidArgument("out", str(path), reason, "Choose another file")
        _require_same(path, before, json.loads(json.dumps(settings.describe())))
        return cls(settings, path, trials)

    def tried(self, run: int, epoch: int) -> list[Trial]:
        """The candidates of one epoch, in the order in which they were tried."""
        return [trial for trial in self.trials if (trial.run, trial.epoch) == (run, epoch)]

    def add(self, trial: Trial) -> None:
        """Write a trial down, durably if there is a file."""
        self.trials.append(trial)
        self.save()

    def end(self) -> None:
        """The search is over: from now on the file holds thresholds."""
        self.ended = True
        self.save()

    def save(self) -> None:
        if self.path is not None:
            text = json.dumps(self.content(), indent=1, ensure_ascii=False)
            replace_file(self.path, (text + "\n").encode())

    def chosen(self, run: int, epoch: int) -> float:
        """The threshold of an epoch whose search is over."""
        best = best_of(self.tried(run, epoch))
        return self.settings.rule.start if best is None else best.threshold

    @property
    def thresholds(self) -> list[float]:
        """C_1 … C_E of the first run, once the search has ended."""
        return [self.chosen(1, epoch) for epoch in range(1, self.settings.epochs + 1)] if self.ended else []

    @property
    def first_thresholds(self) -> list[float]:
        """C_1 of every run, once the search has ended."""
        return [self.chosen(run, 1) for run in range(1, self.settings.runs + 1)] if self.ended else []

    def content(self) -> dict[str, Any]:
        """What the file holds."""
        thresholds, first = self.thresholds, self.first_thresholds
        return {
            "version": VERSION,
            "note": NOTE,
            "thresholds": thresholds,
            "first_thresholds": first,
            "start": statistics.fmean(first) if first else None,
            "fit": asdict(fit_decay(thresholds)) if len(thresholds) > 1 else None,
            "settings": self.settings.describe(),
            "trace": [asdict(trial) for trial in self.trials],
        }


@dataclass(frozen=True)
class Fit:
    """C_t = C₀/t^a: what `clip.Decay` takes as `start` and `power`, if 0 < a ≤ 1."""

    start: float
    power: float

    @property
    def decays(self) -> bool:
        """Whether `clip.Decay` can follow it."""
        return 0 < self.power <= 1


def fit_decay(thresholds: Sequence[float]) -> Fit:
    """Least squares in logarithms: minimises Σ_t (ln C_t − ln C₀ + a·ln t)² over C₀ and a, t = 1, 2, …"""
    if len(thresholds) < 2:
        raise InvalidArgument(
            "epochs", len(thresholds), "a decay cannot be fitted to one threshold", "Search at least two epochs"
        )
    slope, intercept = np.polyfit(np.log(np.arange(1, len(thresholds) + 1)), np.log(thresholds), 1)
    return Fit(float(np.exp(intercept)), -float(slope))


def _require_same(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for key in {**before, **now}:
        if before.get(key) != now.get(key):
            raise InvalidArgument(
                "out",
                str(path),
                f"the search in it has {key} = {before.get(key)!r}, and now it is {now.get(key)!r}",
                "Use the same settings to go on with it, or another file",
            )
