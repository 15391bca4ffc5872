"""Where a run is kept, and what it does about crashes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from apportion.errors import InvalidArgument
from apportion.validate import Checked, checked, instance_of, one_of, shown, whole

LEDGER = Path("secret") / "ledger.sqlite"
CHECKPOINT = Path("secret") / "checkpoint"
KEY = Path("secret") / "key"
DRAWS = Path("secret") / "draws.sqlite"
PROBLEMS = Path("secret") / "problems.jsonl"
"""Where a run folder keeps its ledger, its checkpoint, with exact recovery its key and its book of draws, and what did not contribute."""
CHECKPOINTS = 100
"""A checkpoint after each hundredth of a run, unless somebody says otherwise."""


def _as_path(argument: str, value: Any, why: str, fix: str) -> Path:
    if not isinstance(value, (str, Path)):
        raise InvalidArgument(argument, shown(value), f"it is not a path, and {why}", f'Try {argument}="runs/one"')
    return Path(value)


@dataclass(frozen=True)
class Storage(Checked):
    """Where a run is kept: the folder, the ledger, and how it recovers from a crash. Without a folder it lives in memory only.

    Args:
        folder: a new folder, in which the ledger is durable from the first step and the run is saved at the end (also of a run that
            was interrupted).
        ledger: the ledger of the data set, made by `apportion ledger limit`. The run is admitted with its whole plan, or refused if
            the data set's limit does not cover it together with all earlier runs. Every process that names it shares the limit.
        recovery: "fresh": nothing random is stored. A run that goes on from its checkpoint draws new batches and new noise, and the
            steps that it takes again are paid for again, by the plan's spare tokens. "exact": a key in secret/ makes every draw
            repeatable, so that a step whose result was lost is repeated bit for bit and not paid for twice; whoever reads that key
            knows the noise of the whole run. The key is deleted when the run ends. Only for `train`.
        every: steps between two checkpoints; by default a hundredth of the run, rounded up.
        resume: go on with the run in `folder`, which crashed or was stopped. All other arguments as when it was started.

    Examples:
        >>> import apportion as ap
        >>> ap.Storage("runs/first").interval(steps=1500)
        15
    """

    folder: Path | str | None = checked(None, _as_path, "it is where the run is kept")
    ledger: Path | str | None = checked(None, _as_path, "it is the ledger of the data set")
    recovery: Literal["fresh", "exact"] = checked(
        "fresh", one_of("fresh", "exact"), "lost steps are drawn anew, or repeated bit for bit"
    )
    every: int | None = checked(None, whole, "it is a number of steps", "Use 1 for a checkpoint a step")
    resume: bool = checked(False, instance_of(bool), "it is a choice", "Use True or False")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resume and self.folder is None:
            raise InvalidArgument("resume", True, "there is no folder to go on from", "Pass folder=, that of the run")
        if self.recovery == "exact" and self.folder is None:
            raise InvalidArgument(
                "recovery",
                "exact",
                "a draw can only be repeated bit for bit in a run with a folder",
                'Pass folder=, or use recovery="fresh"',
            )

    def path(self, part: Path) -> Path | None:
        """Where a part of the run folder is; `None` without a folder."""
        return None if self.folder is None else Path(self.folder) / part

    def interval(self, steps: int) -> int:
        """Steps between two checkpoints."""
        return self.every or math.ceil(steps / CHECKPOINTS)
