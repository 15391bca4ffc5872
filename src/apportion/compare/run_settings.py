"""What `apportion train` was asked to do, kept in the run folder so that `--resume` needs nothing else. All of it is public."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from apportion.compare.experiment import Experiment
from apportion.errors import InvalidArgument
from apportion.training.checkpoint import replace_file
from apportion.training.storage import CHECKPOINT, CHECKPOINTS, Storage

_FILE = "settings.json"


class RunSettings(BaseModel):
    """One run of `apportion train`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    experiment: Experiment
    ledger: Path | None = None
    mode: str = "fresh"
    spare: int | None = None
    every: int | None = None

    def storage(self, folder: Path, *, resume: bool) -> Storage:
        """Where the run is kept."""
        mode: Any = self.mode
        return Storage(folder, self.ledger, mode, self.every, resume)

    @property
    def spare_steps(self) -> int:
        """Spare steps of the plan: a hundredth of the run, which is enough for one crash, unless somebody said otherwise."""
        return self.experiment.sampling().steps // CHECKPOINTS if self.spare is None else self.spare

    def save(self, folder: Path) -> None:
        """Write them into a folder that holds no run yet."""
        if (folder / _FILE).exists():
            raise InvalidArgument(
                "out",
                str(folder),
                "there is an earlier run already",
                f"Choose a new folder, or go on with it: apportion train --resume {folder}",
            )
        replace_file(folder / _FILE, (self.model_dump_json(indent=1) + "\n").encode())

    @staticmethod
    def forget(folder: Path) -> None:
        """Remove them again, unless the run has begun."""
        if not (folder / CHECKPOINT).exists():
            (folder / _FILE).unlink(missing_ok=True)


def load_settings(folder: Path) -> RunSettings:
    """The settings of the run in `folder`."""
    path = folder / _FILE
    try:
        return RunSettings(**json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InvalidArgument(
            "resume",
            str(folder),
            f"{_FILE} cannot be read there: {error.strerror}",
            "Name the folder of a run of `apportion train` (its own --out)",
        ) from error
    except (ValueError, TypeError, ValidationError) as error:
        line = str(error).splitlines()[0]
        raise InvalidArgument("resume", str(path), f"it is damaged: {line}", "Restore it from a backup") from error
