"""`reproduction/results/*_trials.json`: every trial of every method, run once and kept."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apportion import validate
from apportion.compare.processes import explain_broken_pool, process_pool
from apportion.errors import ApportionError
from apportion.training.checkpoint import replace_file
from reproduction.folders import RESULTS
from reproduction.study.run_cell import run_cell
from reproduction.trials.design import Trial

VERSION = 1


def trials_file(group: str, folder: Path = RESULTS) -> Path:
    """Where the trials of a group of designs are kept."""
    return folder / f"{group}_trials.json"


Show = Callable[[Trial, dict[str, Any]], None]


@dataclass
class KeptTrials:
    """The trials so far, by the fingerprint of their settings. The file is replaced as a whole after every trial."""

    path: Path
    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> KeptTrials:
        """What the file holds; nothing if there is none."""
        entries = json.loads(path.read_text(encoding="utf-8"))["trials"] if path.exists() else []
        return cls(path, {entry["key"]: entry for entry in entries})

    def add(self, entry: dict[str, Any]) -> None:
        """Keep a trial, durably: one line each."""
        self.found[entry["key"]] = entry
        lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in self.found.values())
        replace_file(self.path, f'{{"version": {VERSION}, "trials": [\n{lines}\n]}}\n'.encode())


def run_trials(
    kept: KeptTrials,
    wanted: Callable[[], Sequence[Trial]],
    *,
    processes: int = 1,
    data_dir: Path | None = None,
    show: Show = lambda trial, entry: None,
) -> None:
    """Run what is missing, in so many processes, and keep each trial as it ends. The number of processes changes no result.

    Args:
        wanted: the trials that are missing; asked again after each one, because what is run at full length depends on the shorter ones.
    """
    processes = validate.whole("processes", processes, "they run the trials", "Use 1 to have no others")
    if processes == 1:
        while missing := wanted():
            _keep(kept, missing[0], run_trial(missing[0], data_dir), show)
        return
    pool = process_pool(processes)
    running: dict[Future[dict[str, Any]], Trial] = {}
    try:
        with explain_broken_pool(processes, "trials"):
            while True:
                begun = {trial.key for trial in running.values()}
                free = [trial for trial in wanted() if trial.key not in begun][: processes - len(running)]
                running |= {pool.submit(run_trial, trial, data_dir): trial for trial in free}
                if not running:
                    break
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    _keep(kept, running.pop(future), future.result(), show)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def run_trial(trial: Trial, data_dir: Path | None = None) -> dict[str, Any]:
    """What is kept of a trial. One that is refused, or whose weights are not numbers any more, has no accuracy."""
    entry: dict[str, Any] = {
        "method": trial.method,
        "trial": trial.number,
        "data": trial.data,
        "model": trial.cell.experiment.model,
        "choice": trial.cell.choice.model_dump(mode="json", exclude_defaults=True, exclude={"label"}),
        "seed": trial.cell.seed,
        "key": trial.key,
    } | ({} if trial.stage.stop_after is None else {"stopped_after": trial.stage.stop_after})
    started = time.perf_counter()
    try:
        run = run_cell(trial.cell, data_dir=data_dir)
        entry |= {"accuracy": run.test_accuracy, "epsilon": run.epsilon, "steps": run.steps}
        entry["commit"] = run.details["commit"]
    except ApportionError as error:
        entry |= {"accuracy": None, "refused": " ".join(str(error).split())}
    return entry | {"seconds": round(time.perf_counter() - started, 3)}


def _keep(kept: KeptTrials, trial: Trial, entry: dict[str, Any], show: Show) -> None:
    kept.add(entry)
    show(trial, entry)
