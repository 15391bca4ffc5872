"""Logs of what a run releases: CSV files, TensorBoard and MLflow. They are given the `Entry` of each step, and take nothing else.

How long a step takes follows the number of records that were drawn, which is private. So no log holds the time of a step: where a format
demands one, it is the number of the step.
"""

from __future__ import annotations

import csv
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

from apportion import validate
from apportion.errors import InvalidArgument
from apportion.extras import require_extra
from apportion.training.history import Entry

_COLUMNS = tuple(field.name for field in fields(Entry))


class ReleasedLog(ABC):
    """A log that is called with each `Entry`: `log=` of `train` and `make_private`. Nothing is written before the first one."""

    def __call__(self, entry: Entry) -> None:
        """Write down one step."""
        if type(entry) is not Entry:
            reason = (
                "a log of released values takes the Entry of a step; a loss, a norm or a batch size was not released"
            )
            raise InvalidArgument("entry", type(entry).__name__, reason, "Pass log= to train or make_private")
        self.write(entry)

    @abstractmethod
    def write(self, entry: Entry) -> None:
        """Write down one step, as far as the disk or the server."""

    def close(self) -> None:  # noqa: B027
        """The run is over, or interrupted: whatever is open is closed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class CsvLog(ReleasedLog):
    """A CSV file with one row a step and the fields of `Entry` as columns; several values in a field have spaces between them.

    Args:
        path: a new file.
        resume: append to the file instead. Steps that a resumed run takes again are there twice: they were released twice.

    Guarantee: of the records the file holds nothing but what was released.

    Examples:
        >>> import apportion as ap
        >>> with ap.integrations.CsvLog("steps.csv") as log:  # doctest: +SKIP
        ...     run = ap.train(model, loss_fn, data, plan, lr=0.5, log=log)
    """

    def __init__(self, path: str | Path, *, resume: bool = False):
        self.path = _as_path(path)
        if self.path.is_dir() or (self.path.exists() and not os.access(self.path, os.W_OK)):
            raise InvalidArgument("log", str(self.path), "nothing can be written there", "Choose a file")
        if self.path.exists() and not resume:
            raise InvalidArgument(
                "log", str(self.path), "there is such a file already", "Choose a new one, or resume=True"
            )
        _require_folder(self.path.parent)

    def write(self, entry: Entry) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            if not file.tell():
                rows.writerow(_COLUMNS)
            rows.writerow([_cell(getattr(entry, name)) for name in _COLUMNS])


class TensorBoardLog(ReleasedLog):
    """Scalars for TensorBoard, with the names of `Entry`: `clip`, `noise_multiplier`, `epsilon`, …, and `test_auc` for the metric `auc`.

    Args:
        folder: where an event file is made.

    Guarantee: of the records the file holds nothing but what was released. The wall time of a value is the number of its step.

    Examples:
        >>> import apportion as ap
        >>> with ap.integrations.TensorBoardLog("runs/board") as log:  # doctest: +SKIP
        ...     run = ap.train(model, loss_fn, data, plan, lr=0.5, log=log)
    """

    def __init__(self, folder: str | Path):
        require_extra("log", "tensorboard")
        self.folder = _as_path(folder)
        self._writer: Any = None
        _require_folder(self.folder)

    def write(self, entry: Entry) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.folder))
        for name, value in released_values(entry).items():
            self._writer.add_scalar(name, value, entry.step, walltime=float(entry.step))
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class MlflowLog(ReleasedLog):
    """Metrics of an MLflow run, with the names of `TensorBoardLog`.

    Args:
        uri: of the tracking server or its database, such as "http://127.0.0.1:5000" or "sqlite:///mlflow.db".
        experiment: of MLflow; it is made if there is none of this name.
        run_name: of the run, by default one that MLflow makes up.

    Guarantee: of the records MLflow is told nothing but what was released. The timestamp of a value is the number of its step, and the run
    ends for MLflow when it began. What a server writes down about its connections is its own.

    Examples:
        >>> import apportion as ap
        >>> with ap.integrations.MlflowLog("sqlite:///mlflow.db") as log:  # doctest: +SKIP
        ...     run = ap.train(model, loss_fn, data, plan, lr=0.5, log=log)
    """

    def __init__(self, uri: str, *, experiment: str = "apportion", run_name: str | None = None):
        require_extra("log", "mlflow")
        from mlflow import MlflowClient

        self._begin, self._run_name = int(time.time() * 1000), run_name
        self._run: str | None = None
        with _explained(uri), _answered_soon():
            self._client = MlflowClient(tracking_uri=uri)
            found = self._client.get_experiment_by_name(experiment)
            self._experiment = found.experiment_id if found is not None else self._client.create_experiment(experiment)

    def write(self, entry: Entry) -> None:
        from mlflow.entities import Metric

        if self._run is None:
            made = self._client.create_run(self._experiment, start_time=self._begin, run_name=self._run_name)
            self._run = made.info.run_id
        values = released_values(entry).items()
        self._client.log_batch(
            self._run, metrics=[Metric(name, value, entry.step, entry.step) for name, value in values]
        )

    def close(self) -> None:
        if self._run is not None:
            self._client.set_terminated(self._run, end_time=self._begin)
            self._run = None


def released_values(entry: Entry) -> Mapping[str, float]:
    """The numbers of an entry by name, without those that were not computed: `clip`, or `clip/1` and `clip/2` of two releases."""
    found: dict[str, float | None] = {"epoch": entry.epoch, "noise_multiplier": entry.noise_multiplier}
    found |= {"epsilon": entry.epsilon, "selected": entry.selected}
    for name, values in (("clip", entry.clip), ("learning_rate", entry.learning_rate)):
        found |= {name if len(values) == 1 else f"{name}/{place}": value for place, value in enumerate(values, start=1)}
    for group, epsilon in (entry.group_epsilon or {}).items():
        found["epsilon_of_" + re.sub(r"[^\w.-]", "_", group)] = epsilon
    if entry.metric is not None:
        found[f"test_{entry.metric}"] = entry.score
    return {name: float(value) for name, value in found.items() if value is not None}


def open_log(said: str, *, resume: bool = False) -> ReleasedLog:
    """The log that a command line names: `csv:FILE`, `tensorboard:FOLDER` or `mlflow:URI`.

    Args:
        resume: go on with a file that exists.
    """
    kind, colon, place = said.partition(":")
    fix = "Write csv:FILE, tensorboard:FOLDER or mlflow:URI"
    if not colon or not place:
        raise InvalidArgument("log", said, "it does not say where to", fix)
    validate.known("log", kind, ("csv", "tensorboard", "mlflow"), f"there is no such kind of log. {fix}")
    if kind == "csv":
        return CsvLog(place, resume=resume)
    return TensorBoardLog(place) if kind == "tensorboard" else MlflowLog(place)


def absolute_log(said: str) -> str:
    """What `open_log` reads, whatever the current folder is by then."""
    kind, _, place = said.partition(":")
    return f"{kind}:{Path(place).absolute()}" if kind in ("csv", "tensorboard") and place else said


def _cell(value: Any) -> Any:
    if isinstance(value, tuple):
        return " ".join(str(one) for one in value)
    return " ".join(f"{name}={one}" for name, one in value.items()) if isinstance(value, Mapping) else value


def _as_path(value: Any) -> Path:
    if not isinstance(value, (str, Path)):
        raise InvalidArgument("log", validate.shown(value), f"it is a {type(value).__name__}", "Pass a path")
    return Path(value)


def _require_folder(folder: Path) -> None:
    """Refuse, before anything is charged, a folder that cannot be written to. What does not exist yet is made with the first entry."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise InvalidArgument("log", str(folder), "nothing can be written there", "Choose another folder")


@contextmanager
def _answered_soon() -> Iterator[None]:
    """Whether there is a server at all is known after one retry. Of its own accord MLflow goes on for four minutes."""
    name = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
    if name in os.environ:
        yield
        return
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]


@contextmanager
def _explained(uri: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of MLflow, of a database, of the network
        reason = f"MLflow cannot use it ({type(error).__name__}: {error})"
        raise InvalidArgument("log", f"mlflow:{uri}", reason, "Try mlflow:sqlite:///mlflow.db") from error
