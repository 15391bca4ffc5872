"""What `apportion train` was asked to do, kept in the run folder so that `--resume` needs nothing else. All of it is public."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from apportion.compare.experiment import Experiment
from apportion.compare.held_out import HoldoutChoice, forget_key
from apportion.errors import InvalidArgument
from apportion.training.checkpoint import replace_file
from apportion.training.storage import CHECKPOINT, Storage

_FILE = "settings.json"


class RunSettings(BaseModel):
    """One run of `apportion train`.

    Args:
        experiment: data, model and how it is trained.
        plan: what is executed, as `Plan.to_json` writes it; `None` for training without privacy.
        ledger, recovery, every: as of `Storage`.
        holdout: which records of a table are held out.
        log: where released values are logged, as `open_log` reads it.
        chosen: what was filled in where nothing was said, and why.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    experiment: Experiment
    plan: str | None = None
    ledger: Path | None = None
    recovery: str = "fresh"
    every: int | None = None
    holdout: HoldoutChoice | None = None
    log: str | None = None
    chosen: tuple[str, ...] = ()

    def storage(self, folder: Path, *, resume: bool) -> Storage:
        """Where the run is kept."""
        mode: Any = self.recovery
        return Storage(folder, self.ledger, mode, self.every, resume)

    def save(self, folder: Path) -> None:
        """Write them into a folder that holds no run yet."""
        if (folder / _FILE).exists():
            fix = f"Choose a new folder, or go on with it: apportion train --resume {folder}"
            raise InvalidArgument("out", str(folder), "there is an earlier run already", fix)
        replace_file(folder / _FILE, (self.model_dump_json(indent=1) + "\n").encode())

    @staticmethod
    def forget(folder: Path) -> None:
        """Remove them again, unless the run has begun."""
        if not (folder / CHECKPOINT).exists():
            (folder / _FILE).unlink(missing_ok=True)
            forget_key(folder)


def was_started(folder: Path) -> bool:
    """Whether the folder is that of a run of `apportion train`."""
    return (folder / _FILE).is_file()


def load_settings(folder: Path) -> RunSettings:
    """The settings of the run in `folder`."""
    path = folder / _FILE
    try:
        return RunSettings(**json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        reason = f"{_FILE} cannot be read there: {error.strerror}"
        fix = "Name the folder of a run of `apportion train` (its own --out); a run that was started in Python goes on there, "
        fix += "with storage=apportion.Storage(folder, resume=True)"
        raise InvalidArgument("resume", str(folder), reason, fix) from error
    except (ValueError, TypeError, ValidationError) as error:
        line = str(error).splitlines()[0]
        raise InvalidArgument("resume", str(path), f"it is damaged: {line}", "Restore it from a backup") from error
